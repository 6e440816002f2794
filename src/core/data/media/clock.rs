//! The timeline that a video shares with its sound (Qwen2.5-Omni, Qwen3-Omni): which runs stand in the text in which
//! order, and at which positions. It equals `get_rope_index` and the processors of transformers 5.17, Qwen3-Omni's fractions of a
//! position included.

use std::ops::Range;

use super::expansion::{Expansion, Piece, Run, Timed};

/// Describes how a model counts time.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// Positions of a second, which are also tokens of a second of sound.
    pub per_second: i64,
    pub order: RunOrder,
    /// Tokens before and behind the sound of a video.
    pub sound_start: String,
    pub sound_end: String,
}

/// The order of the runs of a video with sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOrder {
    /// The frames of every so many positions come first, then their sound. The markers of video and sound share positions (Qwen2.5-Omni).
    Chunks(i64),
    /// The runs are sorted by position, frames before sound (Qwen3-Omni).
    Merged,
}

/// A video's frames on a timeline: the position of each and the rows and columns of all.
#[derive(Clone, Debug, PartialEq)]
struct Frames {
    times: Vec<f32>,
    h: i64,
    w: i64,
}

impl Clock {
    /// Returns a video without sound: a run of each frame, `seconds` from one to the next, as pieces of an
    /// [`Expansion`](super::Expansion).
    pub fn video(&self, run: Run, seconds: f64) -> Vec<Piece> {
        let frames = self.frames(run, seconds);
        let all = 0..frames.len();
        let mut runs = frames.runs(all.clone());
        self.close(&mut runs, frames.after(all), false);
        runs.into_iter().map(Piece::Run).collect()
    }

    /// Returns a video that [`Clock::video`] made pieces of, and its sound.
    pub fn with_sound(&self, video: Expansion, sound: Expansion) -> Expansion {
        let pieces = self.interleave(&Frames::of(&video.pieces), sound.num_features());
        Expansion { media: video.media.into_iter().chain(sound.media).collect(), pieces }
    }

    fn interleave(&self, frames: &Frames, num_tokens: usize) -> Vec<Piece> {
        let (mut runs, mut after) = (Vec::new(), 0.0);
        for part in self.parts(frames, num_tokens) {
            let (more, next) = match part {
                Part::Frames(range) => (frames.runs(range.clone()), frames.after(range)),
                Part::Sound(range) => {
                    let timed = timed([range.start as f32; 3]);
                    (vec![Run { timed, ..Run::of_sound(range.len()) }], range.end as f32)
                }
            };
            runs.extend(more);
            after = next;
        }
        self.close(&mut runs, after, matches!(self.order, RunOrder::Chunks(_)));
        let start = Piece::Text(self.sound_start.clone());
        let end = Piece::Text(self.sound_end.clone());
        [start].into_iter().chain(runs.into_iter().map(Piece::Run)).chain([end]).collect()
    }

    fn frames(&self, run: Run, seconds: f64) -> Frames {
        // In float32, as the reference counts.
        let position = |frame: u32| frame as f32 * seconds as f32 * self.per_second as f32;
        let counted = |position: f32| match self.order {
            RunOrder::Chunks(_) => position.trunc(),
            RunOrder::Merged => position,
        };
        let times = (0..run.t).map(|frame| counted(position(frame))).collect();
        Frames { times, h: i64::from(run.h), w: i64::from(run.w) }
    }

    /// Returns the parts of the text, in order: tokens of frames and of sound.
    fn parts(&self, frames: &Frames, num_tokens: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        match self.order {
            RunOrder::Chunks(len) => {
                let seen = chunks((0..frames.len()).map(|token| frames.time(token)), len);
                let heard = chunks((0..num_tokens).map(|token| token as f32), len);
                for number in 0..seen.len().max(heard.len()) {
                    parts.extend(seen.get(number).cloned().map(Part::Frames));
                    parts.extend(heard.get(number).cloned().map(Part::Sound));
                }
            }
            RunOrder::Merged => {
                let (mut seen, mut heard) = (0, 0);
                let frame_len = frames.frame_len();
                for (number, &time) in frames.times.iter().enumerate() {
                    // Sound that is before the frame; none is left where the sound ends first.
                    let until = (time.ceil() as usize).min(num_tokens);
                    if until > heard {
                        parts.extend([Part::Frames(seen..number * frame_len), Part::Sound(heard..until)]);
                        (seen, heard) = (number * frame_len, until);
                    }
                }
                parts.extend([Part::Frames(seen..frames.len()), Part::Sound(heard..num_tokens)]);
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Makes one group of the runs.
    fn close(&self, runs: &mut [Run], after: f32, twin_markers: bool) {
        for timed in runs.iter_mut().filter_map(|run| run.timed.as_mut()) {
            timed.twin_markers = twin_markers;
        }
        if let Some(timed) = runs.first_mut().and_then(|run| run.timed.as_mut()) {
            timed.begins = true;
        }
        if let Some(timed) = runs.last_mut().and_then(|run| run.timed.as_mut()) {
            timed.ends = Some(after);
        }
    }
}

/// Neighboring tokens of a video with sound.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Frames(Range<usize>),
    Sound(Range<usize>),
}

impl Part {
    fn is_empty(&self) -> bool {
        let (Self::Frames(range) | Self::Sound(range)) = self;
        range.is_empty()
    }
}

impl Frames {
    /// Collects the runs of frames among `pieces`.
    fn of(pieces: &[Piece]) -> Self {
        let mut frames = Self { times: Vec::new(), h: 1, w: 1 };
        for piece in pieces {
            if let Piece::Run(Run { timed: Some(timed), h, w, .. }) = piece {
                frames.times.push(timed.offset[0]);
                (frames.h, frames.w) = (i64::from(*h), i64::from(*w));
            }
        }
        frames
    }

    fn frame_len(&self) -> usize {
        (self.h * self.w) as usize
    }

    /// Returns the number of tokens of all frames.
    fn len(&self) -> usize {
        self.times.len() * self.frame_len()
    }

    fn time(&self, token: usize) -> f32 {
        self.times[token / self.frame_len()]
    }

    /// Returns the positions of a token from the group's begin.
    fn position(&self, token: usize) -> [f32; 3] {
        let within = (token % self.frame_len()) as i64;
        [self.time(token), (within / self.w) as f32, (within % self.w) as f32]
    }

    /// Returns the tokens of a range as runs: whole frames, and one by one where a frame is cut.
    fn runs(&self, range: Range<usize>) -> Vec<Run> {
        let (mut runs, mut at, len) = (Vec::new(), range.start, self.frame_len());
        while at < range.end {
            let is_whole = at.is_multiple_of(len) && at + len <= range.end;
            let (h, w) = if is_whole { (self.h as usize, self.w as usize) } else { (1, 1) };
            runs.push(Run { timed: timed(self.position(at)), ..Run::new(1, h, w) });
            at += h * w;
        }
        runs
    }

    /// Returns the position behind the largest of a range of tokens.
    fn after(&self, range: Range<usize>) -> f32 {
        range.flat_map(|token| self.position(token)).reduce(f32::max).map_or(0.0, |largest| largest + 1.0)
    }
}

fn timed(offset: [f32; 3]) -> Option<Timed> {
    Some(Timed { offset, begins: false, ends: None, twin_markers: false })
}

/// Cuts tokens by their positions at multiples of `len`. A token passes one boundary at most: behind a jump over several,
/// each token is a chunk of its own until they have caught up, as the reference walks.
fn chunks(positions: impl ExactSizeIterator<Item = f32>, len: i64) -> Vec<Range<usize>> {
    let (num_tokens, mut begin, mut chunks) = (positions.len(), 0, Vec::<Range<usize>>::new());
    for (token, position) in positions.enumerate() {
        if position >= ((chunks.len() as i64 + 1) * len) as f32 {
            chunks.push(begin..token);
            begin = token;
        }
    }
    chunks.push(begin..num_tokens);
    chunks
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value as Json;

    use super::*;
    use crate::data::positions::{PositionKind, Span};
    use crate::message::Tower;

    #[derive(Deserialize)]
    struct Case {
        family: String,
        /// Text and its tokens; an image, its rows and columns; audio and its tokens; a video, its frames, rows, columns,
        /// seconds from one to the next, and the tokens of its sound.
        spans: Vec<Vec<Json>>,
        /// 0 for a token of text, 1 for a picture's or a video's, 2 for sound's.
        kinds: Vec<u8>,
        positions: [Vec<f32>; 3],
    }

    fn clock(family: &str) -> Clock {
        let (per_second, order) = match family {
            "qwen2_5_omni" => (25, RunOrder::Chunks(50)),
            _ => (13, RunOrder::Merged),
        };
        Clock { per_second, order, sound_start: "[".into(), sound_end: "]".into() }
    }

    /// Returns the spans and the kinds of tokens of a case; each file is between two markers.
    fn laid_out(case: &Case) -> (Vec<Span>, Vec<u8>) {
        let clock = clock(&case.family);
        let (mut spans, mut num_text) = (Vec::new(), 0);
        for span in &case.spans {
            let number = |at: usize| span[at].as_u64().unwrap() as usize;
            let run = |run: Run| vec![Piece::Run(run)];
            let pieces = match span[0].as_str().unwrap() {
                "text" => {
                    num_text += number(1);
                    continue;
                }
                "image" => run(Run::new(1, number(1), number(2))),
                "audio" => run(Run::of_sound(number(1))),
                _ => {
                    let (video, num_tokens) = (Run::new(number(1), number(2), number(3)), number(5));
                    let pieces = clock.video(video, span[4].as_f64().unwrap());
                    match num_tokens {
                        0 => pieces,
                        _ => clock.interleave(&Frames::of(&pieces), num_tokens),
                    }
                }
            };
            num_text += 1;
            for piece in pieces {
                match piece {
                    Piece::Text(text) => num_text += text.len(),
                    Piece::Number(_) => num_text += 1,
                    Piece::Run(run) => spans.extend([Span::Text(std::mem::take(&mut num_text)), Span::Run(run)]),
                }
            }
            num_text += 1;
        }
        spans.push(Span::Text(num_text));
        let kinds = spans.iter().flat_map(|span| match span {
            Span::Text(num_tokens) => vec![0; *num_tokens],
            Span::Run(run) => vec![if run.tower == Tower::Audio { 2 } else { 1 }; run.len()],
        });
        let kinds = kinds.collect();
        (spans, kinds)
    }

    #[test]
    fn order_and_positions_equal_the_reference() {
        let golden = flate2::read::GzDecoder::new(&include_bytes!("../audio/goldens/positions.json.gz")[..]);
        let cases: Vec<Case> = serde_json::from_reader(golden).unwrap();
        assert!(cases.len() >= 50);
        for case in cases {
            let (spans, kinds) = laid_out(&case);
            assert_eq!(kinds, case.kinds, "{} {:?}", case.family, case.spans);
            let ids = PositionKind::Multimodal.ids(&spans);
            let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 2.0 * f32::EPSILON * expected;
            let expected = case.positions.concat();
            assert!(ids.iter().zip(&expected).all(is_near), "{} {:?}: {ids:?} {expected:?}", case.family, case.spans);
        }
    }
}
