//! A clip of speech, and the seconds of it in which somebody speaks: actors pause, and nobody can tell who is silent.

use crate::rng::Rng;

/// Samples of a piece: a second.
pub(super) const PIECE: usize = 16_000;
/// The most samples of a clip that are kept.
const MAX_CLIP: usize = 6 * PIECE;
/// Pieces begin at multiples of it, in samples.
const HOP: usize = PIECE / 100;
/// The mean square of a piece of speech, at least, where the clip's largest sample is 1: -30 dB.
const MIN_MEAN_SQUARE: f64 = 1e-3;

/// A clip that has a second of speech.
pub(super) struct Spoken {
    /// 16-bit samples; the largest has the value [`i16::MAX`].
    samples: Vec<i16>,
    /// Numbers of the hops that such a second begins at.
    starts: Vec<usize>,
}

impl Spoken {
    /// Takes the first seconds of a clip. `None`: there is no second of speech in them.
    pub fn new(clip: &[f32]) -> Option<Self> {
        let clip = &clip[..clip.len().min(MAX_CLIP)];
        let peak = clip.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
        let hops: Vec<f64> =
            clip.chunks_exact(HOP).map(|hop| hop.iter().map(|&sample| f64::from(sample).powi(2)).sum()).collect();
        let least = MIN_MEAN_SQUARE * f64::from(peak).powi(2) * PIECE as f64;
        let is_speech = |piece: &[f64]| peak > 0.0 && piece.iter().sum::<f64>() >= least;
        let pieces = hops.windows(PIECE / HOP).enumerate();
        let starts: Vec<usize> = pieces.filter(|(_, piece)| is_speech(piece)).map(|(start, _)| start).collect();
        let samples = clip.iter().map(|sample| (sample / peak * f32::from(i16::MAX)) as i16);
        (!starts.is_empty()).then(|| Self { samples: samples.collect(), starts })
    }

    /// Draws a random second of speech, in [-1, 1].
    pub fn piece(&self, rng: &mut Rng) -> impl Iterator<Item = f32> {
        let start = self.starts[rng.below(self.starts.len() as u64) as usize] * HOP;
        self.samples[start..start + PIECE].iter().map(|&sample| f32::from(sample) / f32::from(i16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_somebody_speaks() {
        // A second of speech between two of noise that is 40 dB below it.
        let sample = |at: usize| if at / PIECE == 1 { 0.2 } else { 0.002 };
        let clip: Vec<f32> = (0..3 * PIECE).map(|at| if at % 2 == 0 { sample(at) } else { -sample(at) }).collect();
        let spoken = Spoken::new(&clip).unwrap();
        let mut rng = Rng::new(&[1]);
        for _ in 0..100 {
            let piece: Vec<f32> = spoken.piece(&mut rng).collect();
            let num_loud = piece.iter().filter(|sample| sample.abs() > 0.9).count();
            assert!(piece.len() == PIECE && num_loud > 0, "{num_loud}");
        }
        let click: Vec<f32> = (0..2 * PIECE).map(|at| if at == 5 { 1.0 } else { 0.002 }).collect();
        assert!(Spoken::new(&click).is_none() && Spoken::new(&vec![0.0; 2 * PIECE]).is_none());
        assert!(Spoken::new(&clip[PIECE..2 * PIECE]).is_some() && Spoken::new(&clip[PIECE..PIECE + 99]).is_none());
    }
}
