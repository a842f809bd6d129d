//! Which child has which row of the memory that they share.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use crate::handover::rows::{ROWS, Rows};

/// Gives rows to children.
#[derive(Clone, Debug)]
pub(super) struct RowKeeper(Rc<Kept>);

#[derive(Debug)]
struct Kept {
    rows: Rows,
    /// A bit for each that a child has.
    given: Cell<u32>,
}

/// A row of one child: clear again when this is dropped, which is to be when the child has ended.
#[derive(Debug)]
pub(super) struct ChildRow {
    keeper: RowKeeper,
    pub(super) index: usize,
}

impl RowKeeper {
    /// With new memory; nothing where the system refuses it, which is said.
    pub(super) fn create() -> Option<Self> {
        let rows = Rows::create();
        let rows = rows.inspect_err(|error| {
            tracing::warn!(%error, "limits are not shared in an upgrade: no memory");
        });
        rows.ok().map(Self::new)
    }

    pub(super) fn new(rows: Rows) -> Self {
        let given = Cell::new(0);
        Self(Rc::new(Kept { rows, given }))
    }

    /// A row that nobody has, if there is one.
    pub(super) fn give(&self) -> Option<ChildRow> {
        (0..ROWS).find_map(|index| self.give_this(index))
    }

    /// This row, where the program before this one gave it.
    pub(super) fn give_this(&self, index: usize) -> Option<ChildRow> {
        let (given, bit) = (self.0.given.get(), 1_u32.checked_shl(index as u32)?);
        if index >= ROWS || given & bit != 0 {
            return None;
        }
        self.0.given.set(given | bit);
        Some(ChildRow {
            keeper: self.clone(),
            index,
        })
    }

    /// The memory, to be handed over.
    pub(super) fn file(&self) -> io::Result<OwnedFd> {
        self.0.rows.as_fd().try_clone_to_owned()
    }
}

impl Drop for ChildRow {
    fn drop(&mut self) {
        let Kept { rows, given } = &*self.keeper.0;
        rows.clear(self.index);
        given.set(given.get() & !(1 << self.index));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn a_row_is_one_child_s_until_it_has_ended_and_then_clear() {
        let keeper = RowKeeper::new(Rows::create().unwrap());
        let seen = Rows::open(keeper.file().unwrap()).unwrap();
        let mut rows: Vec<ChildRow> = std::iter::from_fn(|| keeper.give()).collect();
        let indices: Vec<usize> = rows.iter().map(|row| row.index).collect();
        assert!(indices.into_iter().eq(0..ROWS));
        let word = || &seen.all().nth(3).unwrap()[7];
        word().store(9, SeqCst);
        assert!(keeper.give_this(3).is_none());
        drop(rows.remove(3));
        assert_eq!(word().load(SeqCst), 0);
        assert_eq!(keeper.give().unwrap().index, 3);
        assert!(keeper.give_this(ROWS).is_none() && keeper.give_this(99).is_none());
    }
}
