//! x
/// x
/// # Errors
/// x
pub fn write(_: &std::path::Path, _: &std::path::Path) -> Result<(), crate::Error> {
    Ok(())
}
