//! The mel filters: triangles on Slaney's scale, each of the same area.

/// The upper end of the last filter, in Hz. `WhisperFeatureExtractor` has it at every rate.
const MAX_HZ: f64 = 8000.0;
/// Below this frequency the scale is linear, above it logarithmic.
const LINEAR_HZ: f64 = 1000.0;
const HZ_PER_MEL: f64 = 200.0 / 3.0;
/// Mels from 1,000 Hz to 6,400 Hz.
const MELS_PER_LOG: f64 = 27.0;

/// One filter: its weights, from the first bin of the spectrum that it does not ignore.
#[derive(Clone, Debug)]
pub struct Filter {
    pub first: usize,
    pub weights: Vec<f32>,
}

/// Makes `num_mels` filters over the `1 + n_fft / 2` bins of a spectrum.
///
/// They are computed in float64 and rounded to float32, as `mel_filter_bank` of transformers is used.
pub fn filters(num_mels: usize, n_fft: usize, rate: u32) -> Vec<Filter> {
    let num_bins = 1 + n_fft / 2;
    let nyquist = f64::from(rate / 2);
    let hz_of_bin = |bin: usize| nyquist * bin as f64 / (num_bins - 1) as f64;
    let step = mel(MAX_HZ) / (num_mels + 1) as f64;
    let edges: Vec<f64> = (0..num_mels + 2).map(|edge| hz(step * edge as f64)).collect();
    let triangle = |edges: &[f64]| {
        let [left, center, right] = [edges[0], edges[1], edges[2]];
        let weight = |hz: f64| ((hz - left) / (center - left)).min((right - hz) / (right - center)).max(0.0);
        let weights: Vec<f32> =
            (0..num_bins).map(|bin| (weight(hz_of_bin(bin)) * 2.0 / (right - left)) as f32).collect();
        let first = weights.iter().position(|&weight| weight > 0.0).unwrap_or(0);
        let end = weights.iter().rposition(|&weight| weight > 0.0).map_or(first, |last| last + 1);
        Filter { first, weights: weights[first..end].to_vec() }
    };
    edges.windows(3).map(triangle).collect()
}

fn mel(hz: f64) -> f64 {
    let linear_mels = LINEAR_HZ / HZ_PER_MEL;
    if hz < LINEAR_HZ {
        return hz / HZ_PER_MEL;
    }
    linear_mels + (hz / LINEAR_HZ).ln() * MELS_PER_LOG / 6.4_f64.ln()
}

fn hz(mel: f64) -> f64 {
    let linear_mels = LINEAR_HZ / HZ_PER_MEL;
    if mel < linear_mels {
        return mel * HZ_PER_MEL;
    }
    LINEAR_HZ * ((mel - linear_mels) * 6.4_f64.ln() / MELS_PER_LOG).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that `mel_filter_bank` gives.
    #[test]
    fn equal_to_the_reference() {
        for (num_mels, max, sum) in [(80, 0.0258807, 1.9990241), (128, 0.0416818, 3.1909855)] {
            let filters = filters(num_mels, 400, 16_000);
            let weights: Vec<f32> = filters.iter().flat_map(|filter| filter.weights.clone()).collect();
            assert!((weights.iter().fold(0.0_f32, |a, &b| a.max(b)) - max).abs() < 1e-6);
            assert!((weights.iter().sum::<f32>() - sum).abs() < 1e-5);
            assert!(filters.iter().all(|filter| !filter.weights.is_empty()));
        }
        // The filters peak at the row 1 of the transposed table: bin 1 of filters 0 and 1.
        let filters = filters(128, 400, 16_000);
        let at_bin_1 =
            |filter: &Filter| 1_usize.checked_sub(filter.first).and_then(|at| filter.weights.get(at).copied());
        assert!((at_bin_1(&filters[0]).unwrap() - 0.012_373_99).abs() < 1e-7);
        assert!((at_bin_1(&filters[1]).unwrap() - 0.030_392_56).abs() < 1e-7);
    }
}
