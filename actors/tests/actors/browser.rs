//! The page of a run in a real browser, without a window. Skipped, with a word, where there is no Chromium.

use crate::must;
use loongforge_actors::watch::{Watch, still_page};
use loongforge_core::message::{Activity, ActorId, EdgeLoad, Timings, Trace, TraceSpan};
use loongforge_core::observe::{Board, News, RunInfo, StepMetrics};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns `CHROME`, or the first that is on the path.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        || std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|at| at.is_file());
    std::env::var_os("CHROME").map(PathBuf::from).or_else(on_path)
}

/// Tells a watch of a run of twelve steps.
fn tell(watch: &Watch) {
    let (encoder, foundation) = (ActorId::encoder(0), ActorId::foundation(0));
    for step in 0..12 {
        let at = step * 1_000_000;
        let span = |activity, index, start, end| TraceSpan { activity, step, index, start: at + start, end: at + end };
        for (actor, activity) in [(encoder, Activity::Encode), (foundation, Activity::Pack)] {
            let spans = vec![span(activity, Some(0), 0, 600_000), span(Activity::WaitMail, None, 600_000, 900_000)];
            let edges = vec![EdgeLoad { to: foundation, in_flight: 1 << 20, credit: 4 << 20, num_unsent: 3 }];
            watch.tell(News::Trace(actor, Trace { now: at + 950_000, spans, num_lost: 0, edges }));
        }
        let metrics = StepMetrics {
            step,
            loss: 4.0 / (step + 1) as f64,
            tokens: 4096,
            tokens_per_s: 4000.0,
            step_ms: 1000.0,
            ..StepMetrics::default()
        };
        let timings = Timings { busy: 0.75, idle: 0.25, packs: 0.7, ..Timings::default() };
        watch.tell(News::Step(Box::new(metrics), vec![(encoder, timings), (foundation, timings)]));
    }
}

/// Loads a page in a browser; returns its document, and what the browser logged.
fn opened(browser: &Path, dir: &Path, url: &str) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(["--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom"])
        .arg(url)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_page_that_is_a_file_draws_itself() {
    let Some(browser) = browser() else {
        return must::skip("browser", "no chromium, chromium-browser, google-chrome or chrome on the path");
    };
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { name: "</script><b>run</b>".into(), num_steps: 12, ..RunInfo::default() };
    let mut board = Board::new(info, 100, 1);
    for step in 0..12 {
        // A constant rate, as means of many steps round it.
        let learning_rate = f64::from_bits(1e-4_f64.to_bits() + step % 2);
        let loss = 4.0 / (step + 1) as f64;
        let metrics = StepMetrics { step, loss, learning_rate, step_ms: 500.0, ..StepMetrics::default() };
        board.take(News::Step(Box::new(metrics), Vec::new()), step * 500_000_000, 0);
    }
    board.take(News::Evaluated { step: 6, losses: vec![("val".into(), 0.75)] }, 6_000_000_000, 0);
    board.take(News::Evaluated { step: 12, losses: vec![("val".into(), 0.5)] }, 6_000_000_000, 0);
    let path = dir.path().join("page.html");
    std::fs::write(&path, still_page(&board.status(), &board.history(), Some(b"no picture"))).unwrap();
    let (page, errors) = opened(&browser, dir.path(), &format!("file://{}", path.display()));
    for wanted in ["&lt;/script&gt;&lt;b&gt;run", "training 0.3333", "val 0.5", "step 12 of 12", "data-ready=\"1\""] {
        assert!(page.contains(wanted), "{wanted} is not in the page:\n{page}\n{errors}");
    }
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}

#[test]
fn the_page_draws_what_the_run_does() {
    let Some(browser) = browser() else {
        let why = "no chromium, chromium-browser, google-chrome or chrome on the path, and CHROME is not set";
        return must::skip("browser", why);
    };
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo {
        name: "<b>run</b> & \"co\"".into(),
        dir: "runs/x".into(),
        actors: vec![ActorId::encoder(0), ActorId::foundation(0)],
        num_steps: 40,
        ..RunInfo::default()
    };
    let watch = Watch::start(&"127.0.0.1:0".parse().unwrap(), dir.path(), Board::new(info, 100, 10)).unwrap();
    tell(&watch);
    let (page, errors) = opened(&browser, dir.path(), &watch.url());
    for wanted in [
        // What a run is called is text, whatever it is.
        "&lt;b&gt;run&lt;/b&gt; &amp; \"co\"",
        "step 12 of 40, ETA 0:00:28",
        "<polyline",
        // The legend has the last value of each curve.
        "training 0.3333",
        "encoder/0: encode",
        "1.0 MiB of 4.0 MiB, 3 wait",
        "data-ready=\"1\"",
    ] {
        assert!(page.contains(wanted), "{wanted} is not in the page:\n{page}\n{errors}");
    }
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}
