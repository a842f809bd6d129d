//! x
use crate::result::Run;
/// x
pub fn run(_: &Run) -> String {
    String::new()
}
/// x
pub fn compare(_: &Run, _: &Run) -> String {
    String::new()
}
