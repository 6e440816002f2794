//! The content that a sample is made from, and reading its files.

use super::captioned::Captioned;
use super::cut::{TextPiece, TokenPiece};
use super::labeled::Labeled;
use super::messages::{Conversation, MediaSource};
use super::pairs::Pair;
use crate::data::lerobot::Step;
use crate::data::locator::Locator;
use crate::data::packed::PackedSample;

/// Says what a sample is made from. Files in it are resolved.
#[derive(Debug, PartialEq)]
pub enum Content {
    Messages(Conversation),
    /// Two answers to one prompt.
    Pair(Box<Pair>),
    /// An answer that is good or bad.
    Labeled(Box<Labeled>),
    /// Labeled answers that make one sample.
    Group(Vec<Labeled>),
    Text(TextPiece),
    /// Tokens of a document, used as they are.
    Tokens(TokenPiece),
    /// Documents end to end, processed but for their pixels.
    Packed(PackedSample),
    /// A picture or a clip with its caption.
    Captioned(Captioned),
    /// A frame of an episode of a robot.
    Step(Step),
}

impl Content {
    /// Returns the pictures, videos and recordings that it names, and texts for a text tower.
    pub fn media(&self) -> Vec<&MediaSource> {
        match self {
            Self::Messages(conversation) => conversation.media.iter().collect(),
            Self::Pair(pair) => pair.answers().into_iter().flat_map(|answer| &answer.media).collect(),
            Self::Labeled(answer) => answer.conversation.media.iter().collect(),
            Self::Group(answers) => answers.iter().flat_map(|answer| &answer.conversation.media).collect(),
            Self::Captioned(captioned) => {
                captioned.target.iter().chain(&captioned.references).chain(&captioned.mask).collect()
            }
            Self::Text(_) | Self::Tokens(_) | Self::Packed(_) | Self::Step(_) => Vec::new(),
        }
    }
}

/// Brings what lies in an object store here.
pub(super) fn fetch(source: &mut MediaSource) -> Result<(), String> {
    let locators = match source {
        MediaSource::Image(locator) => std::slice::from_mut(locator),
        MediaSource::Audio(audio) => std::slice::from_mut(&mut audio.locator),
        MediaSource::Video(video) => video.locators.as_mut_slice(),
        MediaSource::Context(_) => &mut [],
    };
    for locator in locators {
        if let Locator::Url(url) = locator {
            #[cfg(feature = "cloud")]
            {
                let bytes = super::remote::get(url, 256 << 20).map_err(|reason| format!("{url}: {reason}"))?;
                *locator = Locator::bytes(std::mem::take(url), bytes);
            }
            #[cfg(not(feature = "cloud"))]
            return Err(format!("{url}: this program was built without the feature `cloud`"));
        }
    }
    Ok(())
}
