//! A terminal that passes every key on, while a session in a Pod is open.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;

use kube::api::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Whether a person types, and sees what comes.
pub fn interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// How large it is.
pub fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(std::io::stdout().as_fd()).ok()?;
    Some(TerminalSize { width: size.ws_col, height: size.ws_row })
}

/// The terminal in raw mode; as it was before when this ends.
pub struct Raw(Termios);

impl Raw {
    /// Every key goes through, Ctrl-C as well.
    pub fn begin() -> Option<Self> {
        let before = tcgetattr(std::io::stdin().as_fd()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}
