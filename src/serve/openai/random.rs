//! Numbers that nobody may guess, from the system's randomness.

/// Draws 64 random bits.
///
/// # Panics
/// The system has no randomness to give, which no system that is up and running does.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    u64::from_le_bytes(bytes)
}
