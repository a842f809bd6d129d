//! x
use crate::result::Run;
/// x
pub fn html(_: &Run) -> String {
    String::new()
}
