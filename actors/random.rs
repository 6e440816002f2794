//! Unpredictable numbers from the system's randomness.

use loongforge_core::text::hex;

/// Draws 128 random bits.
///
/// # Panics
/// Panics if the system provides no randomness, which no running system does.
pub(crate) fn bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    u128::from_le_bytes(bytes)
}

/// Draws 128 random bits, as 32 hexadecimal digits.
///
/// # Panics
/// Panics like [`bits`].
pub(crate) fn token() -> String {
    hex(bits().to_le_bytes())
}
