//! The health of servers, watched by control: [`prober`] decides who is in service, [`mod@check`] is one check,
//! [`watched`] what was found.

pub mod check;
pub mod prober;
pub mod watched;
