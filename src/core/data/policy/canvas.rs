//! Pictures are cut into patches and resized by these, whatever policy they are for.

/// Returns a canvas `[3, rows, columns]` as patches row by row, `[patches, 3 × patch × patch]`; whole patches fill it.
pub fn cut(canvas: &[f32], [rows, columns]: [usize; 2], patch: usize) -> Vec<f32> {
    let [down, across] = [rows, columns].map(|side| side / patch);
    let mut pixels = Vec::with_capacity(canvas.len());
    for (y, x) in (0..down).flat_map(|y| (0..across).map(move |x| (y * patch, x * patch))) {
        for channel in 0..3 {
            for row in y..y + patch {
                let line = &canvas[(channel * rows + row) * columns..][..columns];
                pixels.extend_from_slice(&line[x..x + patch]);
            }
        }
    }
    pixels
}

/// Returns for each new place the two old ones that it lies between, and the weight of the second.
pub fn taps(old: usize, new: usize) -> Vec<(usize, usize, f32)> {
    let scale = old as f32 / new as f32;
    let tap = |at: usize| {
        let place = (scale * (at as f32 + 0.5) - 0.5).max(0.0);
        let first = (place as usize).min(old - 1);
        (first, (first + 1).min(old - 1), (place - first as f32).clamp(0.0, 1.0))
    };
    (0..new).map(tap).collect()
}
