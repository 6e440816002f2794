//! Position ids of a sample. RoPE itself is in the model.

use super::media::Run;
use crate::message::Tower;

/// Says how a model counts positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionKind {
    /// One by one, whatever a token stands for; the three rows are equal.
    Sequential,
    /// Frames, rows and columns apart (M-RoPE): `get_rope_index` of Qwen2-VL and its successors and of ERNIE-4.5-VL in transformers 5.17.
    /// Text advances all three by one a token; features span a box that begins where the text before it ended, and the text after it goes
    /// on behind the longer of the box's sides. Sound and the texts of a text tower advance as text does. A video of the Omni models,
    /// with or without its sound, says itself where each of its runs is.
    Multimodal,
}

impl PositionKind {
    /// Returns the position ids of one sequence, [3, tokens]: rows of frames, rows and columns, from 0. They are whole but where a video
    /// of Qwen3-Omni has frames between two positions, and behind it.
    pub fn ids(self, spans: &[Span]) -> Vec<f32> {
        let len = spans.iter().map(|span| span.len()).sum();
        if self == Self::Sequential {
            return (0..3).flat_map(|_| (0..len).map(|at| at as f32)).collect();
        }
        let mut ids = vec![0.0; 3 * len];
        let (frames, rest) = ids.split_at_mut(len);
        let (rows, columns) = rest.split_at_mut(len);
        let (mut at, mut next) = (0, 0.0);
        // Where the group of runs began that is being counted, and whether the markers behind it share a position.
        let (mut begin, mut twin) = (0.0, false);
        for span in spans {
            let steps = (0..span.len()).map(|step| step as f32);
            match *span {
                Span::Text(num_tokens) => {
                    let twins = num_tokens > 0 && std::mem::take(&mut twin) && num_tokens > 1;
                    let first = if twins { next - 1.0 } else { next };
                    for step in steps {
                        let id = if step == 0.0 { next } else { first + step };
                        (frames[at], rows[at], columns[at]) = (id, id, id);
                        at += 1;
                    }
                    next = first + num_tokens as f32;
                }
                Span::Run(Run { timed: Some(timed), h, w, tower, .. }) => {
                    if timed.begins {
                        if timed.twin_markers && at > 1 {
                            next -= 1.0;
                            for row in [&mut *frames, &mut *rows, &mut *columns] {
                                row[at - 1] = row[at - 2];
                            }
                        }
                        begin = next;
                    }
                    for (index, step) in (0u32..).zip(steps) {
                        let [t, row, column] = timed.offset.map(|offset| begin + offset);
                        let steps = match tower {
                            Tower::Audio | Tower::Text | Tower::Vae | Tower::Reference => [step; 3],
                            Tower::Vision => [0.0, (index / w % h) as f32, (index % w) as f32],
                        };
                        (frames[at], rows[at], columns[at]) = (t + steps[0], row + steps[1], column + steps[2]);
                        at += 1;
                    }
                    if let Some(after) = timed.ends {
                        (next, twin) = (begin + after, timed.twin_markers);
                    }
                }
                Span::Run(run) if run.tower != Tower::Vision => {
                    for step in steps {
                        (frames[at], rows[at], columns[at]) = (next + step, next + step, next + step);
                        at += 1;
                    }
                    next += run.len() as f32;
                }
                Span::Run(run) => {
                    let (h, w) = (i64::from(run.h), i64::from(run.w));
                    for index in 0..run.len() as i64 {
                        frames[at] = next + (index / (h * w) * run.interval) as f32;
                        rows[at] = next + (index / w % h) as f32;
                        columns[at] = next + (index % w) as f32;
                        at += 1;
                    }
                    next += h.max(w) as f32;
                }
            }
        }
        ids
    }
}

/// Neighboring tokens of one nature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    Text(usize),
    Run(Run),
}

impl Span {
    fn len(self) -> usize {
        match self {
            Span::Text(num_tokens) => num_tokens,
            Span::Run(run) => run.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value as Json;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        family: String,
        /// A number: so many tokens of text; frames, rows, columns, interval: a run.
        spans: Vec<Json>,
        position_ids: [Vec<f32>; 3],
    }

    #[test]
    fn equal_to_transformers() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("goldens/positions.json")).unwrap();
        assert!(cases.len() >= 40);
        for case in cases {
            let number = |value: &Json| value.as_u64().unwrap() as usize;
            let parse = |span: &Json| match span.as_array() {
                None => Span::Text(number(span)),
                Some(run) => {
                    let interval = run[3].as_i64().unwrap();
                    Span::Run(Run { interval, ..Run::new(number(&run[0]), number(&run[1]), number(&run[2])) })
                }
            };
            let spans: Vec<Span> = case.spans.iter().map(parse).collect();
            assert_eq!(PositionKind::Multimodal.ids(&spans), case.position_ids.concat(), "{} {spans:?}", case.family);
        }
    }

    #[test]
    fn one_by_one_whatever_stands_there() {
        assert_eq!(
            PositionKind::Sequential.ids(&[Span::Text(1), Span::Run(Run::new(1, 1, 2))]),
            [0.0, 1.0, 2.0].repeat(3)
        );
    }
}
