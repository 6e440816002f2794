//! A table of names.

/// Pairs of an original name and Diffusers' name of the same module or parameter. `*` stands for a number that both have.
pub(super) type Table = Vec<[String; 2]>;

pub(super) fn pair(original: &str, diffusers: &str) -> [String; 2] {
    [original, diffusers].map(str::to_owned)
}
