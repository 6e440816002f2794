//! Reads a file of held-out samples.

use loongforge_core::config::{BadSamples, Data, Pack, TooLong, TrainFile};

/// Returns the file's samples in its order, read as the run's are, each with its prompt and its pictures, however many of them cannot be
/// used.
pub fn data(data: &Data, file: TrainFile) -> Data {
    let on_bad_sample = BadSamples { max_fraction: 1.0, max_consecutive: usize::MAX };
    // Longer samples are counted, not a reason to end.
    let too_long = if data.pack.too_long == TooLong::Error { TooLong::Skip } else { data.pack.too_long };
    let pack = Pack { too_long, ..data.pack };
    Data {
        train: vec![file],
        shuffle: false,
        val_size: 0.0,
        on_bad_sample,
        pack,
        caption_dropout: None,
        condition_dropout: None,
        ..data.clone()
    }
}
