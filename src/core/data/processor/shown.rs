//! Samples of a chat whose pictures are there already.

use image::RgbImage;

use super::Processor;
use crate::data::error::DataError;
use crate::data::expand::{Expanded, check, find};
use crate::data::media::MediaKind;
use crate::data::sample::Sample;
use crate::data::source::Turn;
use crate::message::SampleId;

impl Processor {
    /// Makes the sample of the turns as they are, with these pictures in their order; nothing counts in the loss.
    ///
    /// # Errors
    /// The turns have another number of pictures, the model takes none, or the sample is too long.
    pub(in crate::data) fn shown(
        &self,
        id: SampleId,
        turns: &[Turn],
        pictures: &[RgbImage],
    ) -> Result<Sample, DataError> {
        let media = self.media_processor().ok_or_else(|| DataError::Line("this model takes no pictures".to_owned()))?;
        let turns = self.written(turns);
        let text = self.expect_template()?.of(&turns).render(&turns)?;
        let places = find(&text, &self.towers.markers);
        check(&places, pictures.iter().map(|_| MediaKind::Image))?;
        let expansions = pictures.iter().map(|picture| media.image(picture).map_err(DataError::Line));
        let expansions = expansions.collect::<Result<Vec<_>, _>>()?;
        let expanded = Expanded::new(&text, &places, &expansions, |tower| self.towers.placeholder(tower));
        let tokens = self.tokenizer.encode(&expanded.text)?;
        self.assemble(id, &tokens, &vec![false; tokens.len()], &expanded.runs, expansions)
    }
}
