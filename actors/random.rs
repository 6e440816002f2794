//! Numbers that nobody may guess, from the system's randomness.

use loongforge_core::text::hex;

/// Draws 128 random bits.
///
/// # Panics
/// The system has no randomness to give, which no system that is up and running does.
pub(crate) fn bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    u128::from_le_bytes(bytes)
}

/// Draws 128 random bits, as 32 hexadecimal digits.
///
/// # Panics
/// As [`bits`].
pub(crate) fn token() -> String {
    hex(bits().to_le_bytes())
}
