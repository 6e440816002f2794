//! The 256 numbers of the dynamic data type of 8 bits (Dettmers 2016, arXiv:1511.04561; 2022, arXiv:2110.02861), as
//! `create_dynamic_map` of bitsandbytes lists them.

/// Returns the numbers of the codes, ascending, from -0.993 (signed) or 0 to 1: for each power of ten down to 1e-7 there are twice as
/// many as for the one below it. They are for magnitudes up to 1.
pub fn dynamic_map(signed: bool) -> [f32; 256] {
    let mut numbers: Vec<f32> = vec![0.0, 1.0];
    for exponent in 0..7u32 {
        let count = if signed { 1 << exponent } else { 2 << exponent };
        let bounds = linspace(count + 1);
        let scale = 10f64.powi(exponent as i32 - 6) as f32;
        for pair in bounds.windows(2) {
            let number = (pair[0] + pair[1]) / 2.0 * scale;
            numbers.push(number);
            if signed {
                numbers.push(-number);
            }
        }
    }
    numbers.sort_by(f32::total_cmp);
    numbers.try_into().expect("256 numbers")
}

/// Returns the numbers of `torch.linspace(0.1, 1, count)`: from both ends to the middle, each number rounded once.
fn linspace(count: usize) -> Vec<f32> {
    let (start, end) = (0.1f32, 1.0f32);
    let step = (end - start) / (count - 1) as f32;
    let at = |index: usize| match index < count / 2 {
        true => step.mul_add(index as f32, start),
        false => (-step).mul_add((count - index - 1) as f32, end),
    };
    (0..count).map(at).collect()
}
