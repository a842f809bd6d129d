//! `becket top`: a running becket, live in a terminal.
//!
//! A thread requests `/status` and `/connections/top`, and sends the answers as a
//! [`sample::Sample`]. The [`screen`] keeps two samples and the choices made with keys; [`view`]
//! draws it. The terminal is restored at the end, whether by a key, a signal, an error or a panic.

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
    /// Standard output is a file or a pipe.
    #[error("standard output is not a terminal; use becket status instead")]
    NoTerminal,
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows the becket at `place`, refreshed at each interval `every`, until a key or a signal ends
/// the program.
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
    // Also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, Screen::new(first), &samples, &ended);
    ratatui::try_restore()?;
    Ok(shown?)
}

/// Takes samples on a separate thread, so that the screen never waits for an answer.
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

/// Maximum wait for a key between checks for signals and samples.
const STEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod fixture;
