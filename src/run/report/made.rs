//! The report of the pictures and clips that a model has made: a sheet of them in their folder, in TensorBoard and on the page, and a
//! line.

use super::Report;
use crate::eval::samples::step_folder;
use loongforge_core::data::Dataset;
use loongforge_core::message::SampleId;
use loongforge_core::observe::{Exhibit, Gallery, News, ObserveError};
use loongforge_core::schedule::EvaluationSummary;
use loongforge_core::text::counted;

/// The file of the sheet, beside the samples.
const SHEET: &str = "sheet.png";

impl Report {
    /// Shows what was made before a step, if anything was.
    pub(super) fn made(&mut self, summary: &EvaluationSummary) {
        if summary.made.is_empty() {
            return;
        }
        if let Err(error) = self.show_made(summary) {
            self.console.line(&format!("warning: {error}"));
        }
    }

    fn show_made(&mut self, summary: &EvaluationSummary) -> Result<(), ObserveError> {
        let step = summary.step.0;
        let mut made = summary.made.clone();
        made.sort();
        let exhibit = |(prompt, name): &(SampleId, String)| {
            // Of a clip the frames side by side.
            let path = self.dir.join(name).with_extension("png");
            let picture = image::open(&path).map_err(|source| ObserveError::Picture { path, source })?.into_rgb8();
            Ok(Exhibit { picture, text: self.prompts.as_ref().map_or_else(String::new, |set| text(set, *prompt)) })
        };
        let exhibits = made.iter().map(exhibit).collect::<Result<Vec<_>, ObserveError>>()?;
        let steps = counted(step, "step");
        let gallery = Gallery::new(&format!("after {steps}"), &exhibits);
        let path = self.dir.join(step_folder(summary.step)).join(SHEET);
        gallery.save(&path)?;
        let png = gallery.png()?;
        if let Some(tensorboard) = &mut self.tensorboard {
            let (width, height) = gallery.size();
            tensorboard.image(step, "samples", width, height, &png)?;
        }
        self.trackers.samples(step, gallery.size(), &png)?;
        self.tell(|| News::Samples { step, png });
        self.console.line(&format!("samples after {steps}, {} of them: {}", made.len(), path.display()));
        Ok(())
    }
}

/// Returns the text of a prompt, or where it is.
fn text(prompts: &Dataset, id: SampleId) -> String {
    let Some((_, index)) = id.as_held_out() else { return String::new() };
    prompts.caption(index).unwrap_or_else(|| prompts.place_name(index))
}
