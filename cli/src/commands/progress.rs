//! Progress on standard error, drawn only where that is a terminal.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// A bar, for work of known length.
pub fn bar(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{wide_bar}] {pos}/{len}, {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(0), target()).with_prefix(what.to_owned());
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar, // the template is ours and right; a bar without it is still a bar
    }
}

/// A spinner, for work of unknown length.
pub fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target()).with_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}
