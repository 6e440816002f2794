//! Packs made ahead of time: samples end to end with templates, tokens, masks and lengths done; only pixels are decoded
//! in training. Here is how one pack lies in a WebDataset shard; not who makes them (`tools::pack`).
//!
//! ```text
//! KEY.json               {"ids": [..], "lens": [..], "samples": [..], "media": [{"kind", "fps", "files"}], "items": [..]}
//! KEY.input_ids.npy      [tokens], 32-bit
//! KEY.targets.npy        [tokens]; -100 does not count in the loss
//! KEY.position_ids.npy   [3, tokens]; only where they are not 0, 1, 2, … in each document; 32-bit floats where some are fractions
//! KEY.0_name.jpg …       pictures and frames, as they were found
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::audio::Segment;
use super::error::DataError;
use super::npy::{read_npy, read_npy_numbers, write_npy, write_npy_numbers};
use crate::message::{Grid, ItemMeta, Tower};

const JSON: &str = "json";
const INPUT_IDS: &str = "input_ids.npy";
const TARGETS: &str = "targets.npy";
const POSITION_IDS: &str = "position_ids.npy";

/// One pack.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedSample {
    /// Positions of its documents in the stream that was packed.
    pub ids: Vec<u64>,
    /// Tokens of each document, in order; at least one document.
    pub lens: Vec<u32>,
    /// The origin of each document: file and key.
    pub samples: Vec<String>,
    /// [tokens]
    pub input_ids: Vec<i32>,
    /// [tokens]
    pub targets: Vec<i32>,
    /// [3, tokens], each document from 0; `None` where every document counts 0, 1, 2, … on all axes.
    pub position_ids: Option<Vec<f32>>,
    /// Pictures and videos in the order of their placeholders.
    pub media: Vec<PackedMedia>,
    /// The items that the encoder will be given of all of them.
    pub items: Vec<ItemMeta>,
}

/// A member of a shard: its name behind the key's dot, and its bytes.
pub type Member = (String, Arc<[u8]>);

/// A picture or a video of a pack.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedMedia {
    pub kind: PackedKind,
    /// Name within the pack and bytes; several for a video of frames.
    pub files: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PackedKind {
    Image,
    Audio {
        segment: Segment,
    },
    /// A text for a text tower.
    Context,
    /// A video, with the rate of its frames where the sample gives it.
    Video {
        fps: Option<f64>,
    },
}

#[derive(Serialize, Deserialize)]
struct RawPack {
    ids: Vec<u64>,
    lens: Vec<u32>,
    samples: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    media: Vec<RawMedia>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    items: Vec<RawItem>,
}

#[derive(Serialize, Deserialize)]
struct RawMedia {
    kind: RawKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fps: Option<f64>,
    /// Tells where a part of a recording begins, in seconds; `end` tells where it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<f64>,
    files: Vec<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawKind {
    Image,
    Audio,
    Context,
    Video,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct RawItem {
    #[serde(default = "vision", skip_serializing_if = "is_vision")]
    tower: Tower,
    grid: [u32; 3],
    features: u32,
}

impl PackedSample {
    /// Returns the number of tokens in the pack.
    pub fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Returns the members of its key in a shard: the name behind the key's dot, and the bytes.
    pub fn members(&self) -> Vec<Member> {
        let raw = RawPack {
            ids: self.ids.clone(),
            lens: self.lens.clone(),
            samples: self.samples.clone(),
            media: self.media.iter().map(PackedMedia::raw).collect(),
            items: self.items.iter().map(RawItem::of).collect(),
        };
        let json = serde_json::to_vec(&raw).expect("numbers and strings");
        let num_tokens = self.input_ids.len();
        let mut members = vec![
            (JSON.to_owned(), Arc::from(json)),
            (INPUT_IDS.to_owned(), write_npy(&[num_tokens], &self.input_ids).into()),
            (TARGETS.to_owned(), write_npy(&[num_tokens], &self.targets).into()),
        ];
        let positions = self.position_ids.iter();
        members.extend(positions.map(|ids| (POSITION_IDS.to_owned(), write_npy_numbers(&[3, num_tokens], ids).into())));
        members.extend(self.media.iter().flat_map(|media| media.files.iter().cloned()));
        members
    }

    /// Makes a pack from the members of its key, in any order.
    ///
    /// # Errors
    /// A member is missing or wrong, or they disagree with each other.
    pub fn from_members(members: &[Member]) -> Result<Self, DataError> {
        let find = |name: &str| members.iter().find(|(other, _)| other == name).map(|(_, bytes)| bytes);
        let expect = |name: &str| find(name).ok_or_else(|| wrong(format!("the pack has no member {name}")));
        let raw: RawPack = serde_json::from_slice(expect(JSON)?).map_err(|error| wrong(error.to_string()))?;
        let num_tokens: u64 = raw.lens.iter().map(|&len| u64::from(len)).sum();
        if raw.lens.is_empty() || raw.lens.contains(&0) {
            return Err(wrong("the pack has no documents, or an empty one".to_owned()));
        }
        if raw.ids.len() != raw.lens.len() || raw.samples.len() != raw.lens.len() {
            let (ids, lens, samples) = (raw.ids.len(), raw.lens.len(), raw.samples.len());
            return Err(wrong(format!(
                "the pack has {ids} ids, {lens} lens and {samples} samples, but needs as many of each"
            )));
        }
        let fits = |name: &str, shape: &[usize], rows: &[usize]| match shape.split_last() {
            Some((&last, first)) if last as u64 == num_tokens && first == rows => Ok(()),
            _ => Err(wrong(format!("{name} has the shape {shape:?}, but lens add up to {num_tokens} tokens"))),
        };
        let of_tokens = |name: &str| {
            let (shape, values) = read_npy(expect(name)?)?;
            fits(name, &shape, &[]).map(|()| values)
        };
        let of_axes = |bytes: &Arc<[u8]>| {
            let (shape, values) = read_npy_numbers(bytes)?;
            fits(POSITION_IDS, &shape, &[3]).map(|()| values)
        };
        let (input_ids, targets) = (of_tokens(INPUT_IDS)?, of_tokens(TARGETS)?);
        let position_ids = find(POSITION_IDS).map(of_axes).transpose()?;
        let media = raw.media.into_iter().map(|media| media.open(&find)).collect::<Result<_, _>>()?;
        let items = raw.items.into_iter().map(RawItem::open).collect();
        Ok(Self { ids: raw.ids, lens: raw.lens, samples: raw.samples, input_ids, targets, position_ids, media, items })
    }

    /// Returns the position ids `[3, tokens]`: those of the pack, or the plain ones.
    pub fn all_position_ids(&self) -> Vec<f32> {
        let plain = || {
            let row = self.lens.iter().flat_map(|&len| (0..len).map(|at| at as f32));
            row.collect::<Vec<f32>>().repeat(3)
        };
        self.position_ids.clone().unwrap_or_else(plain)
    }
}

impl PackedMedia {
    fn raw(&self) -> RawMedia {
        let (kind, fps, segment) = match self.kind {
            PackedKind::Image => (RawKind::Image, None, Segment::WHOLE),
            PackedKind::Audio { segment } => (RawKind::Audio, None, segment),
            PackedKind::Context => (RawKind::Context, None, Segment::WHOLE),
            PackedKind::Video { fps } => (RawKind::Video, fps, Segment::WHOLE),
        };
        let start = Some(segment.start).filter(|_| !segment.is_whole());
        let files = self.files.iter().map(|(name, _)| name.clone()).collect();
        RawMedia { kind, fps, start, end: segment.end, files }
    }
}

impl RawMedia {
    fn open<'a>(self, find: &impl Fn(&str) -> Option<&'a Arc<[u8]>>) -> Result<PackedMedia, DataError> {
        let kind = match (self.kind, self.fps) {
            (RawKind::Image, _) if self.files.len() != 1 => {
                return Err(wrong(format!("a picture must have one file, found {}", self.files.len())));
            }
            (RawKind::Audio, _) if self.files.len() != 1 => {
                return Err(wrong(format!("a recording must have one file, found {}", self.files.len())));
            }
            (RawKind::Context, _) if self.files.len() != 1 => {
                return Err(wrong(format!("a context must have one file, found {}", self.files.len())));
            }
            (RawKind::Context, _) => PackedKind::Context,
            (RawKind::Image, _) => PackedKind::Image,
            (RawKind::Audio, _) => {
                PackedKind::Audio { segment: Segment::new(self.start.unwrap_or(0.0), self.end).map_err(wrong)? }
            }
            (RawKind::Video, Some(fps)) if !(fps.is_finite() && fps > 0.0) => {
                return Err(wrong(format!("the fps of a video must be a finite number above 0, found {fps}")));
            }
            (RawKind::Video, fps) => PackedKind::Video { fps },
        };
        let file = |name: String| match find(&name) {
            Some(bytes) => Ok((name, bytes.clone())),
            None => Err(wrong(format!("the pack has no member {name}"))),
        };
        let files = self.files.into_iter().map(file).collect::<Result<_, _>>()?;
        Ok(PackedMedia { kind, files })
    }
}

/// Packs that were written before there was sound do not say it.
fn vision() -> Tower {
    Tower::Vision
}

fn is_vision(tower: &Tower) -> bool {
    *tower == Tower::Vision
}

impl RawItem {
    fn of(item: &ItemMeta) -> Self {
        let grid = [item.grid.t, item.grid.h, item.grid.w];
        Self { tower: item.tower, grid, features: item.num_features }
    }

    fn open(self) -> ItemMeta {
        let [t, h, w] = self.grid;
        ItemMeta { tower: self.tower, grid: Grid { t, h, w }, num_features: self.features }
    }
}

fn wrong(reason: String) -> DataError {
    DataError::Line(reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack() -> PackedSample {
        let item = |t, h, w, num_features| ItemMeta { tower: Tower::Vision, grid: Grid { t, h, w }, num_features };
        let file = |name: &str, bytes: &[u8]| (name.to_owned(), Arc::from(bytes));
        PackedSample {
            ids: vec![7, 3],
            lens: vec![2, 3],
            samples: vec!["a.jsonl:8".into(), "ü.tar:key".into()],
            input_ids: vec![1, 2, 3, 4, 5],
            targets: vec![2, -100, 4, 5, -100],
            position_ids: Some((0..15).map(|at| at as f32).collect()),
            media: vec![
                PackedMedia { kind: PackedKind::Image, files: vec![file("0_a.png", b"one")] },
                PackedMedia {
                    kind: PackedKind::Video { fps: Some(2.0) },
                    files: vec![file("1_0_f.jpg", b"two"), file("1_1_f.jpg", b"")],
                },
            ],
            items: vec![item(1, 2, 2, 1), item(2, 2, 2, 2), ItemMeta { tower: Tower::Audio, ..item(9, 1, 1, 2) }],
        }
    }

    #[test]
    fn a_pack_is_read_as_it_was_written() {
        let mut pack = pack();
        let mut members = pack.members();
        members.reverse();
        assert_eq!(PackedSample::from_members(&members).unwrap(), pack);
        assert_eq!(pack.all_position_ids(), (0..15).map(|at| at as f32).collect::<Vec<_>>());
        (pack.position_ids, pack.media, pack.items) = (None, Vec::new(), Vec::new());
        let members = pack.members();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["json", "input_ids.npy", "targets.npy"]);
        assert_eq!(PackedSample::from_members(&members).unwrap(), pack);
        assert_eq!(pack.all_position_ids(), [0.0, 1.0, 0.0, 1.0, 2.0].repeat(3));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let reason = |change: &dyn Fn(&mut Vec<Member>)| {
            let mut members = pack().members();
            change(&mut members);
            PackedSample::from_members(&members).unwrap_err().to_string()
        };
        let json =
            |text: &'static str| reason(&move |members: &mut Vec<Member>| members[0].1 = Arc::from(text.as_bytes()));
        assert!(reason(&|members| drop(members.remove(2))).contains("targets.npy"));
        assert!(reason(&|members| drop(members.pop())).contains("1_1_f.jpg"));
        assert!(reason(&|members| members[1].1 = write_npy(&[4], &[1, 2, 3, 4]).into()).contains("5 tokens"));
        assert!(reason(&|members| members[3].1 = write_npy(&[5], &[0; 5]).into()).contains("position_ids"));
        for (text, part) in [
            ("[", "EOF"),
            (r#"{"ids":[1],"lens":[2,3],"samples":["a","b"]}"#, "1 ids"),
            (r#"{"ids":[1,2],"lens":[5,0],"samples":["a","b"]}"#, "empty one"),
            (r#"{"ids":[1,2],"lens":[4294967295,4294967295],"samples":["a","b"]}"#, "8589934590"),
            (r#"{"ids":[1],"lens":[5],"samples":["a"],"media":[{"kind":"image","files":[]}]}"#, "one file, found 0"),
            (r#"{"ids":[1],"lens":[5],"samples":["a"],"media":[{"kind":"video","fps":0,"files":[]}]}"#, "fps"),
        ] {
            assert!(json(text).contains(part), "{text}: {}", json(text));
        }
    }

    proptest! {
        #[test]
        fn damage_never_panics(member in 0usize..7, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut members = pack().members();
            let member = member.min(members.len() - 1);
            let mut bytes = members[member].1.to_vec();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            members[member].1 = bytes.into();
            let _ = PackedSample::from_members(&members);
        }
    }
}
