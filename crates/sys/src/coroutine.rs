//! Coroutines that can be suspended while foreign code is on their stack.
//!
//! A coroutine runs on a separate stack until a function that its body calls, directly or through
//! foreign code, calls [`suspend`]. [`Stacks::run`] then returns to its caller, and
//! [`Suspended::resume`] continues the coroutine later. The crate `corosensei` switches stacks. A
//! thread-local variable refers to the running coroutine, because foreign code cannot pass it on.
//!
//! If the result of a suspended coroutine is no longer needed, it is resumed a last time.
//! [`suspend`] then returns `false`, and the body must return. The stack is not unwound, because
//! unwinding is impossible if panics abort.
//!
//! A guard page lies below each stack. A used stack is kept for the next coroutine, including the
//! memory that it has touched.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Pool of coroutine stacks for one thread. Unused stacks are kept for later coroutines and never
/// freed.
#[derive(Clone)]
pub struct Stacks {
    free: Rc<RefCell<Vec<DefaultStack>>>,
    size: usize,
}

impl Stacks {
    /// Creates a pool without stacks. Each stack will have `size` bytes, but only touched pages take memory.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self {
            free: Rc::default(),
            size,
        }
    }

    /// Runs a coroutine until it is done or suspended. Allocates only for a new stack.
    ///
    /// # Errors
    /// If there is no memory for a stack. `body` is then dropped without having started.
    ///
    /// # Panics
    /// If `body` panics.
    pub fn run<T: 'static>(
        &self,
        body: impl FnOnce() -> T + 'static,
    ) -> io::Result<CoroutineState<T>> {
        let free = self.free.borrow_mut().pop();
        let stack = free.map_or_else(|| DefaultStack::new(self.size), Ok)?;
        let body = move |yielder: &Yielder<Resumed, ()>, _| {
            RUNNING.set(Some(NonNull::from(yielder)));
            body()
        };
        let coroutine = Coroutine::with_stack(stack, body);
        Ok(self.drive(coroutine, Resumed::ToGoOn))
    }

    fn drive<T: 'static>(&self, mut coroutine: Body<T>, why: Resumed) -> CoroutineState<T> {
        let _outer = Outer(RUNNING.take());
        match coroutine.resume(why) {
            CoroutineResult::Yield(()) => CoroutineState::Suspended(Suspended {
                coroutine: Some(coroutine),
                stacks: self.clone(),
            }),
            CoroutineResult::Return(value) => {
                self.free.borrow_mut().push(coroutine.into_stack());
                CoroutineState::Done(value)
            }
        }
    }

    #[must_use]
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Stacks({} free)", self.free())
    }
}

#[derive(Debug)]
pub enum CoroutineState<T: 'static> {
    Done(T),
    Suspended(Suspended<T>),
}

/// A suspended coroutine. Dropping it resumes the coroutine a last time, so that it can return; see
/// [`suspend`].
pub struct Suspended<T: 'static> {
    coroutine: Option<Body<T>>,
    stacks: Stacks,
}

impl<T: 'static> Suspended<T> {
    /// Continues the coroutine until it is done or suspended again.
    ///
    /// # Panics
    /// If the coroutine panics.
    #[must_use]
    pub fn resume(mut self) -> CoroutineState<T> {
        let coroutine = self.coroutine.take().expect("it waits until now");
        self.stacks.drive(coroutine, Resumed::ToGoOn)
    }
}

impl<T: 'static> Drop for Suspended<T> {
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.take() {
            // The coroutine runs to its end, because it cannot be suspended again. Its value is
            // dropped.
            drop(self.stacks.drive(coroutine, Resumed::ToEnd));
        }
    }
}

impl<T> fmt::Debug for Suspended<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Suspended")
    }
}

/// Returns `true` if this thread runs a coroutine that [`suspend`] can suspend.
#[must_use]
pub fn can_suspend() -> bool {
    RUNNING.get().is_some()
}

/// Suspends the coroutine that runs on this thread. Returns `true` if the coroutine must continue.
///
/// Returns `false` if the coroutine must return because its value is no longer needed, or if no
/// coroutine is running.
#[must_use]
pub fn suspend() -> bool {
    let Some(yielder) = RUNNING.take() else {
        return false;
    };
    // SAFETY: the yielder lives on the body's stack for as long as the body runs. `RUNNING` refers to it
    // only while that body runs on this thread: it is set when the body starts and after each
    // suspension, and cleared when the body suspends itself (above), returns or panics (`Outer`). So that
    // body makes this call, and the yielder exists.
    let why = unsafe { yielder.as_ref() }.suspend(());
    let goes_on = matches!(why, Resumed::ToGoOn);
    RUNNING.set(goes_on.then_some(yielder));
    goes_on
}

type Body<T> = Coroutine<Resumed, (), T, DefaultStack>;

#[derive(Clone, Copy, Debug)]
enum Resumed {
    ToGoOn,
    ToEnd,
}

/// The coroutine that was running when the current one was started. On drop, `RUNNING` refers to it
/// again.
struct Outer(Option<NonNull<Yielder<Resumed, ()>>>);

impl Drop for Outer {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

thread_local! {
    static RUNNING: Cell<Option<NonNull<Yielder<Resumed, ()>>>> = const { Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64 * 1024;

    fn suspended<T>(progress: io::Result<CoroutineState<T>>) -> Suspended<T> {
        match progress.unwrap() {
            CoroutineState::Suspended(body) => body,
            CoroutineState::Done(_) => panic!("it is done"),
        }
    }

    fn done<T>(progress: CoroutineState<T>) -> T {
        match progress {
            CoroutineState::Done(value) => value,
            CoroutineState::Suspended(_) => panic!("it waits"),
        }
    }

    #[test]
    fn coroutines_resume_in_any_order_and_release_their_stacks() {
        let stacks = Stacks::new(SIZE);
        let body = |number: u32| move || (0..number).filter(|_| suspend()).count();
        let mut waiting: Vec<_> = (1..=8).map(|n| suspended(stacks.run(body(n)))).collect();
        assert_eq!(stacks.free(), 0);
        waiting.reverse();
        for n in (1..=8).rev() {
            let mut progress = waiting.remove(0).resume();
            while let CoroutineState::Suspended(body) = progress {
                progress = body.resume();
            }
            assert_eq!(done(progress), n);
        }
        assert_eq!(stacks.free(), 8);
        assert!(!can_suspend());
        drop(suspended(stacks.run(body(1))));
        assert_eq!(stacks.free(), 8, "a used stack is used again");
    }

    #[test]
    fn a_dropped_coroutine_runs_to_its_end() {
        let stacks = Stacks::new(SIZE);
        let ended = Rc::new(Cell::new(0));
        let of_body = Rc::clone(&ended);
        let body = suspended(stacks.run(move || {
            let (first, again) = (suspend(), suspend());
            of_body.set(1 + usize::from(first) + usize::from(again) + usize::from(can_suspend()));
        }));
        drop(body);
        assert_eq!((ended.get(), Rc::strong_count(&ended)), (1, 1));
        assert_eq!(stacks.free(), 1);
    }

    #[test]
    fn suspend_has_no_effect_outside_a_coroutine() {
        assert!(!can_suspend() && !suspend());
        let stacks = Stacks::new(SIZE);
        let inner = stacks.clone();
        let outer = stacks.run(move || {
            let body = suspended(inner.run(suspend));
            let ours = suspend();
            (ours, done(body.resume()))
        });
        assert_eq!(done(suspended(outer).resume()), (true, true));
    }

    #[test]
    fn a_panicking_coroutine_leaves_no_coroutine_active() {
        let stacks = Stacks::new(SIZE);
        let body = suspended(stacks.run(|| assert!(!suspend(), "on purpose")));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(body.resume());
        }));
        assert!(caught.is_err());
        assert!(!can_suspend());
    }
}
