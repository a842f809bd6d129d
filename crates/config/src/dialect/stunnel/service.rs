//! What is said of one service, or of all.

use std::collections::BTreeMap;

use super::super::draft::Origin;
use super::table::REPEATED;

/// A value, and where it is said.
pub(super) type Given = (String, Origin);

/// The settings of a section, or of the global part.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) line: usize,
    given: BTreeMap<&'static str, Vec<Given>>,
}

impl Service {
    /// A service that has what the global part says.
    pub(super) fn new(name: String, line: usize, global: &Self) -> Self {
        Self {
            name,
            line,
            given: global.given.clone(),
        }
    }

    /// Takes a value: beside the others where they add up, else in their place.
    pub(super) fn take(&mut self, name: &'static str, value: String, origin: Origin) {
        let values = self.given.entry(name).or_default();
        if !REPEATED.contains(&name) {
            values.clear();
        }
        values.push((value, origin));
    }

    /// Every value of a setting.
    pub(super) fn all(&self, name: &str) -> &[Given] {
        self.given.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of a setting of which there is one.
    pub(super) fn one(&self, name: &str) -> Option<&Given> {
        self.all(name).last()
    }

    /// The value, where it is not empty.
    pub(super) fn text(&self, name: &str) -> Option<(&str, Origin)> {
        let (value, origin) = self.one(name)?;
        Some((value.as_str(), *origin)).filter(|(value, _)| !value.is_empty())
    }

    /// Where a setting says yes.
    pub(super) fn on(&self, name: &str) -> Option<Origin> {
        let (value, origin) = self.text(name)?;
        value.eq_ignore_ascii_case("yes").then_some(origin)
    }

    pub(super) fn is_client(&self) -> bool {
        self.on("client").is_some()
    }
}
