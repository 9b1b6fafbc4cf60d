//! `train --tui`: a run on the whole terminal, with curves, numbers, the log and the last sample.
//!
//! A thread of its own draws a few times a second and reads keys; the run only leaves its events in a [`State`]. What
//! `train` prints without it is printed before and after, so that the scroll-back is the same.

mod draw;
mod series;
mod state;
pub(super) mod terminal;

use super::progress;
use crate::Device;
use crate::train::Event;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, KeyCode, KeyModifiers};
use state::State;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two drawings, but for keys and a new size, which are answered at once.
const DRAW_EVERY: Duration = Duration::from_millis(200);

pub struct View {
    /// Prints what stays in the scroll-back.
    lines: progress::View,
    device: Device,
    screen: Option<Screen>,
    /// What is printed once the terminal is given back.
    afterwards: Vec<Event>,
}

/// The thread that draws.
struct Screen {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl View {
    /// The view of a run on this device. It takes the terminal when the run has started.
    pub fn new(device: &Device, profile: bool, auto: Option<String>) -> View {
        View {
            lines: progress::View::without_bar(profile, auto),
            device: device.clone(),
            screen: None,
            afterwards: Vec::new(),
        }
    }

    pub fn show(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Finished(_) = event {
            self.close()?;
            return self.lines.show(event);
        }
        match (&self.screen, event) {
            (None, Event::Started(_)) => {
                self.lines.show(event)?;
                self.screen = Some(Screen::open(State::new(self.device.clone()))?);
            }
            (None, Event::Preparing(_)) => self.lines.show(event)?,
            // They appear on the screen as all that is written to standard error.
            (_, Event::Note(_) | Event::RolledBack { .. }) => self.lines.show(event)?,
            _ => {}
        }
        if let Some(screen) = &self.screen {
            lock(&screen.state).event(event);
        }
        if let Event::Evaluated { .. } | Event::Sample(_) = event {
            self.afterwards.push(event.clone());
        }
        Ok(())
    }

    /// Gives the terminal back and prints what is to stay there.
    fn close(&mut self) -> io::Result<()> {
        if let Some(screen) = self.screen.take() {
            screen.over.store(true, Ordering::Relaxed);
            // What made it panic was said by the hook.
            let _ = screen.thread.join();
            terminal::leave();
        }
        std::mem::take(&mut self.afterwards).iter().try_for_each(|event| self.lines.show(event))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The error that ended the run matters more than one of printing.
        let _ = self.close();
    }
}

impl Screen {
    fn open(state: State) -> io::Result<Screen> {
        terminal::enter()?;
        let (state, over) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        let run = {
            let (state, over) = (state.clone(), over.clone());
            // A terminal that can no longer be written to is nobody's: the run goes on unseen.
            move || drop(show_until(&over, &state))
        };
        let thread = thread::Builder::new().name("tui".into()).spawn(run).inspect_err(|_| terminal::leave())?;
        Ok(Screen { state, over, thread })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws the state and acts on keys until the run is over.
fn show_until(over: &AtomicBool, state: &Mutex<State>) -> io::Result<()> {
    let mut screen = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    loop {
        // Drawing takes a while, for which the run must not wait.
        let picture = {
            let mut state = lock(state);
            state.refresh();
            state.clone()
        };
        terminal::if_ours(|| screen.draw(|frame| draw::draw(frame, &picture)).map(drop))?;
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        if event::poll(DRAW_EVERY)?
            && let event::Event::Key(key) = event::read()?
            && key.is_press()
        {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                // The terminal sends no signal while each key is read: this is what it would have sent.
                KeyCode::Char('c') if control => signal_hook::low_level::raise(signal_hook::consts::SIGINT)?,
                KeyCode::Char('q') if !control => signal_hook::low_level::raise(signal_hook::consts::SIGINT)?,
                KeyCode::Char('l') if !control => lock(state).toggle_log_scale(),
                _ => {}
            }
        }
    }
}
