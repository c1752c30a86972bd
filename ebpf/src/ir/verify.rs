//! x
use super::*;
/// x
pub fn verify(_: &Module) -> Result<(), Vec<String>> { Ok(()) }
