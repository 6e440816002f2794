//! Seeing what happens: metrics files, TensorBoard, progress, logs, and pictures of results. Nothing here decides.

mod bar;
mod canvas;
mod console;
mod error;
mod error_rate;
mod evaluation;
mod figures;
mod jsonl;
mod logging;
mod metrics;
mod normalize;
mod peak;
mod plot;
mod progress;
mod score;
mod sheet;
mod tensorboard;
mod terminal;
mod watch;

pub use bar::Bar;
pub use console::{Console, ConsoleWriter};
pub use error::ObserveError;
pub use error_rate::ErrorRate;
pub use evaluation::{EvalRecord, read_evaluations};
pub use figures::{bytes, short};
pub use jsonl::{MetricsFile, read_metrics};
pub use logging::init_logging;
pub use metrics::{PoolMetrics, StepMetrics};
pub use peak::{gpu_name, peak_flops};
pub use plot::{Curve, plot};
pub use progress::Progress;
pub use score::{Answer, Scores, Scoring, Verdict};
pub use sheet::{Reading, sheet};
pub use tensorboard::TensorBoard;
pub use terminal::{Style, beside, has_color, render, safe};
pub use watch::{Board, News, RunInfo, View, describe_run};
