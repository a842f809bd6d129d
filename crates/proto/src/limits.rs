//! Limits that several processes share, such as `maxconn` of a server while one process replaces another.
//!
//! Each process has a *share* of every limit, and counts its own connections in a [`SharedCount`] up to that share. The
//! processes share no memory. Shares change by messages, which the supervisor relays and records:
//!
//! * The serving process has the limit minus the shares of all leaving processes ([`Lender`]).
//! * A leaving process has stopped accepting, but still has connections. It gives back the share of connections that
//!   end, and requests more while its clients wait ([`Borrower`]).
//! * The supervisor keeps a row of shares for each leaving process ([`Ledger`]). A process that starts to serve
//!   receives the sum of the rows. When a process ends, its row is deleted.
//!
//! Invariant: the shares of all processes never add up to more than the limit, since a process lowers its own share
//! before it sends the message that raises another share. Every message except [`Wanted`](Lender::set_wanted) is a
//! difference, so messages may cross on the way.
//!
//! In each turn, the serving process handles its messages and then calls [`Lender::settle`] for each limit. A leaving
//! process calls [`Borrower::settle`] for each limit.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Connection counts by limit key.
pub type Counts = BTreeMap<u64, u32>;

/// Number of connections in use, together with this process's share of the limit.
#[derive(Debug)]
pub struct SharedCount(AtomicU64);

/// Share of a process that is alone and may use the whole limit.
pub const UNSHARED: u32 = u32::MAX;

impl Default for SharedCount {
    fn default() -> Self {
        Self(AtomicU64::new(word(UNSHARED, 0)))
    }
}

impl SharedCount {
    pub fn count(&self) -> u32 {
        parts(self.0.load(SeqCst)).1
    }

    pub fn share(&self) -> u32 {
        parts(self.0.load(SeqCst)).0
    }

    /// Returns whether the number of connections in use is below both `most` and the share.
    pub fn has_room(&self, most: u32) -> bool {
        let (share, count) = parts(self.0.load(SeqCst));
        count < share.min(most)
    }

    /// Counts one more connection, unless `most` or the share is reached. Returns whether the
    /// connection was counted.
    pub fn take(&self, most: u32) -> bool {
        let more = |before| {
            let (share, count) = parts(before);
            (count < share.min(most)).then_some(before + 1)
        };
        self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Counts one more connection, regardless of any limit.
    pub fn add(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// Counts one connection less. Each call must match a successful [`Self::take`] or an
    /// [`Self::add`].
    pub fn give_back(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    /// Sets the share and returns the number of connections in use. If the share is lower,
    /// [`Self::take`] fails until enough connections are given back.
    pub fn set_share(&self, share: u32) -> u32 {
        let other = |before| Some(word(share, parts(before).1));
        let before = self.0.fetch_update(SeqCst, SeqCst, other);
        parts(before.unwrap_or_else(|same| same)).1
    }
}

/// Packs the share into the upper half and the count into the lower one. The count never overflows,
/// since each connection is a socket of this process.
fn word(share: u32, count: u32) -> u64 {
    u64::from(share) << 32 | u64::from(count)
}

fn parts(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// The supervisor's record of the shares of all leaving processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    rows: BTreeMap<u32, Counts>,
}

impl Ledger {
    /// Records the share of a process when it stops accepting.
    pub fn set(&mut self, process: u32, held: Counts) {
        self.rows.insert(process, held);
    }

    /// Lowers the shares of a process by the given amounts, but not below zero. Returns the amounts
    /// by which the serving process may raise its own shares.
    pub fn release(&mut self, process: u32, released: &Counts) -> Counts {
        let Some(row) = self.rows.get_mut(&process) else {
            return Counts::new();
        };
        let mut passed = Counts::new();
        for (key, count) in released {
            let Some(held) = row.get_mut(key) else {
                continue;
            };
            let count = *count.min(held);
            *held -= count;
            if *held == 0 {
                row.remove(key);
            }
            passed.insert(*key, count);
        }
        passed
    }

    /// Raises the shares of a process by the given amounts. Returns `false` if the process has no
    /// row; the caller must then return the grant to the serving process.
    pub fn grant(&mut self, process: u32, granted: &Counts) -> bool {
        let Some(row) = self.rows.get_mut(&process) else {
            return false;
        };
        for (key, count) in granted {
            // A compromised serving process must not make a row grow without bound.
            if row.len() >= MOST_LIMITS && !row.contains_key(key) {
                continue;
            }
            let held = row.entry(*key).or_default();
            *held = held.saturating_add(*count);
        }
        true
    }

    /// Deletes the row of a process that ended or serves again. Returns its shares.
    pub fn remove(&mut self, process: u32) -> Counts {
        self.rows.remove(&process).unwrap_or_default()
    }

    pub fn held(&self) -> Counts {
        let mut sum = Counts::new();
        for (key, count) in self.rows.values().flatten() {
            add(&mut sum, *key, *count);
        }
        sum
    }

    pub fn rows(&self) -> &BTreeMap<u32, Counts> {
        &self.rows
    }
}

/// Maximum number of limits per row.
const MOST_LIMITS: usize = 20_000;

/// The serving process's view of the shares and requests of all leaving processes.
#[derive(Debug, Default)]
pub struct Lender {
    held: Counts,
    wanted: BTreeMap<u32, Counts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Processes, each with the amount by which its share was raised.
    pub granted: Vec<(u32, u32)>,
    pub has_grown: bool,
}

impl Lender {
    /// Creates a lender. `held` contains the sum of the leaving processes' shares.
    pub fn new(held: Counts) -> Self {
        Self {
            held,
            wanted: BTreeMap::new(),
        }
    }

    pub fn release(&mut self, released: &Counts) {
        for (key, count) in released {
            if let Some(held) = self.held.get_mut(key) {
                *held = held.saturating_sub(*count);
            }
        }
        self.held.retain(|_, held| *held > 0);
    }

    /// Replaces a process's request for additional connections.
    pub fn set_wanted(&mut self, process: u32, wanted: Counts) {
        self.wanted.insert(process, wanted);
        self.wanted.retain(|_, counts| !counts.is_empty());
    }

    /// Returns whether any leaving process has a share or a request, so that [`Self::settle`] has
    /// work.
    pub fn is_active(&self) -> bool {
        !self.held.is_empty() || !self.wanted.is_empty()
    }

    /// Sets the serving process's share of one limit, and grants as many requests of leaving
    /// processes as possible.
    ///
    /// Requested connections stay reserved for the leaving processes, since their clients came
    /// first. `most` is the limit; `None` means unlimited, so every request is granted.
    pub fn settle(&mut self, key: u64, most: Option<u32>, count: &SharedCount) -> Grants {
        let held = self.held.get(&key).copied().unwrap_or(0);
        let wanted = self.wanted.values().filter_map(|wanted| wanted.get(&key));
        let wanted = wanted.fold(0_u32, |sum, count| sum.saturating_add(*count));
        let free = most.map_or(u32::MAX, |most| most.saturating_sub(held));
        let share = match most {
            Some(_) if held > 0 || wanted > 0 => free.saturating_sub(wanted),
            _ => UNSHARED,
        };
        let before = count.share();
        let used = count.set_share(share);
        let mut left = free.saturating_sub(if most.is_some() { used } else { 0 });
        let mut granted = Vec::new();
        for (process, counts) in &mut self.wanted {
            let asked = counts.get(&key).copied().unwrap_or(0);
            let given = left.min(asked);
            if given > 0 {
                left -= given;
                counts.insert(key, asked - given);
                add(&mut self.held, key, given);
                granted.push((*process, given));
            }
            counts.retain(|_, asked| *asked > 0);
        }
        self.wanted.retain(|_, counts| !counts.is_empty());
        Grants {
            granted,
            has_grown: share > before,
        }
    }
}

/// Tracks a process's share of each connection limit after the process has stopped accepting.
#[derive(Debug, Default)]
pub struct Borrower {
    shares: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Number of connections by which the share was lowered.
    pub released: u32,
    /// Number of further connections that waiting clients need.
    pub wanted: u32,
}

impl Borrower {
    /// Lowers the share of one limit to the connections in use plus at most `spare`, and returns
    /// it. Call it after all workers have stopped accepting.
    pub fn hold(&mut self, key: u64, most: u32, count: &SharedCount, spare: u32) -> u32 {
        let before = count.share().min(most);
        let used = count.set_share(0);
        let share = used.saturating_add(spare).min(before.max(used));
        count.set_share(share);
        self.shares.insert(key, share);
        share
    }

    /// Gives back unused connections except `spare`, or requests as many as the `waiting` clients need.
    pub fn settle(&mut self, key: u64, count: &SharedCount, waiting: u32, spare: u32) -> Settled {
        let share = self.shares.entry(key).or_insert(0);
        let needed = |used: u32| used.saturating_add(waiting).saturating_add(spare);
        let target = needed(count.count()).min(*share);
        // Workers may have taken further connections since the count was read.
        let used = count.set_share(target);
        let kept = used.max(target);
        count.set_share(kept);
        let released = share.saturating_sub(kept);
        *share -= released;
        let free = share.saturating_sub(used);
        Settled {
            released,
            wanted: waiting.saturating_sub(free),
        }
    }

    pub fn granted(&mut self, key: u64, granted: u32, count: &SharedCount) {
        let share = self.shares.entry(key).or_insert(0);
        *share = share.saturating_add(granted);
        count.set_share(*share);
    }
}

fn add(counts: &mut Counts, key: u64, count: u32) {
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests;
