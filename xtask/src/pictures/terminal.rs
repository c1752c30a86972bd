//! A terminal of tmux and its screen as a picture.

use crate::apt::finished;
use anstyle_svg::Term;
use anyhow::{Context, Result, bail};
use kstrobe_testing::browser::Browser;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Columns and rows.
const SIZE: (u32, u32) = (100, 30);
const LIMIT: Duration = Duration::from_secs(30);
/// After the first full screen, for the next second's figures.
const SETTLED: Duration = Duration::from_secs(3);
/// Rows are 18 pixels apart in what draws them. A line of this font is as high at this size, and a character is set a little closer than
/// it is wide, so that blocks touch: elsewhere bars have gaps.
const STYLE: &str = "tspan { font: 15.46px 'DejaVu Sans Mono' !important; letter-spacing: -0.307px }";

/// A server of tmux with one terminal, which ends with it. Its name is its own: an earlier one may still be ending.
pub struct Terminal(String);

impl Terminal {
    /// The screen of a command, with its colours, soon after this became true of its text.
    pub fn screen(name: &str, command: &str, is_there: impl Fn(&str) -> bool) -> Result<String> {
        let terminal = Terminal(format!("kstrobe-{name}-{}", std::process::id()));
        let (width, height) = (SIZE.0.to_string(), SIZE.1.to_string());
        let command = format!("env TERM=screen-256color COLORTERM=truecolor PS1= {command}; sleep 60");
        terminal.ask(&["-f", "/dev/null", "-u", "new-session", "-d", "-x", &width, "-y", &height, &command])?;
        let begin = Instant::now();
        while !is_there(&terminal.ask(&["capture-pane", "-p"])?) {
            if begin.elapsed() > LIMIT {
                bail!("`{command}` shows after {LIMIT:?}:\n{}", terminal.ask(&["capture-pane", "-p"])?);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(SETTLED);
        terminal.ask(&["capture-pane", "-p", "-e"])
    }

    fn ask(&self, arguments: &[&str]) -> Result<String> {
        finished(Command::new("tmux").args(["-L", &self.0]).args(arguments))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = self.ask(&["kill-server"]);
    }
}

/// A screen as a picture, by a browser: how wide a block is differs with the font, and readers have other fonts.
pub fn draw(browser: &Browser, screen: &str, folder: &Path, picture: &Path) -> Result<()> {
    let page = folder.join("screen.html");
    let svg = Term::new().render_svg(screen.trim_end());
    fs::write(&page, format!("<body style='margin: 0; background: black'><style>{STYLE}</style>{svg}"))
        .with_context(|| format!("writing {}", page.display()))?;
    browser.look(SIZE.0 * 12, SIZE.1 * 24, "dark");
    browser.open(&format!("file://{}", page.display()));
    // It takes characters for narrower than they are.
    let size = browser.run(
        "const { x, width } = document.querySelector('text').getBBox();
         const svg = document.querySelector('svg');
         svg.setAttribute('width', Math.ceil(2 * x + width));
         svg.style.display = 'block';
         return [svg.width.baseVal.value, svg.height.baseVal.value]",
    );
    let side = |at: usize| size[at].as_f64().unwrap_or_default() as u32;
    browser.look(side(0), side(1), "dark");
    browser.small_picture(picture);
    Ok(())
}
