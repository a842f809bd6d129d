//! Implements `becket top`, which shows a running becket live in a terminal.
//!
//! A thread requests `/status` and `/connections/top`, and sends the responses as a
//! [`sample::Sample`]. The [`screen`] stores the last two samples and the user's choices, such as
//! the sort order; [`view`] draws it. The terminal is restored after a key, a signal, an error or a
//! panic ends the program.

mod sample;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use self::sample::Sample;
use self::screen::Screen;
use crate::admin::{AdminAddress, NoStatus};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotShown {
    /// Standard output is not a terminal.
    #[error("standard output is not a terminal; use becket status instead")]
    NoTerminal,
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows the becket at `place` until a key or a signal ends the program. `every` is the refresh
/// interval.
///
/// # Errors
/// Standard output is not a terminal, the first request receives no response, or the terminal
/// fails.
pub fn run(place: &AdminAddress, every: Duration) -> Result<(), NotShown> {
    if !io::stdout().is_terminal() {
        return Err(NotShown::NoTerminal);
    }
    let first = Sample::take(place)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&ended))?;
    }
    let samples = ask_again(place.clone(), every);
    // `try_init` also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, Screen::new(first), &samples, &ended);
    ratatui::try_restore()?;
    Ok(shown?)
}

/// Requests samples on a separate thread, so that the screen never waits for a response.
fn ask_again(place: AdminAddress, every: Duration) -> Receiver<Result<Sample, NoStatus>> {
    let (sender, samples) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(every);
            if sender.send(Sample::take(&place)).is_err() {
                return;
            }
        }
    });
    samples
}

fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    samples: &Receiver<Result<Sample, NoStatus>>,
    ended: &AtomicBool,
) -> io::Result<()> {
    while !ended.load(Relaxed) {
        terminal.draw(|frame| view::draw(frame, &mut screen))?;
        if event::poll(STEP)?
            && let Event::Key(key) = event::read()?
            && screen.press(key)
        {
            return Ok(());
        }
        while let Ok(sample) = samples.try_recv() {
            screen.take(sample);
        }
    }
    Ok(())
}

/// Maximum time to wait for a key before the loop checks for signals and samples.
const STEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod fixture;
