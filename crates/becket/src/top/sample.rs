//! Responses of the admin pages, requested at the same time.

use becket_control::replies::TopConnections;
use becket_control::status::Status;
use serde::Deserialize;

use crate::admin::{AdminAddress, NoStatus};

/// Error response of a becket without the page `/connections/top`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TopRefused {
    pub(super) error: String,
}

#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    /// Sources and names with the most connections, or the reason why these are not available.
    pub(super) most: Result<TopConnections, TopRefused>,
}

impl Sample {
    pub(super) fn take(place: &AdminAddress) -> Result<Self, NoStatus> {
        let status = place.status()?;
        let path = format!("/connections/top?limit={MOST_ROWS}");
        let answer = place.request("GET", &path, None)?;
        let most = answer.json().map_err(|_| {
            let error = answer.text();
            answer.json().unwrap_or(TopRefused { error })
        });
        Ok(Self { status, most })
    }
}

/// Maximum number of sources and of names to request. It exceeds the number of lines of most
/// screens.
const MOST_ROWS: usize = 50;
