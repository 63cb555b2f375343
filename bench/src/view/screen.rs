//! The live screen: the ramp as a bar, the figures of this second, two plots of the last minutes, the findings so far.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};

use super::history::History;

/// Draws all of it; a small terminal shows what fits, from the top.
pub fn draw(frame: &mut Frame<'_>, history: &History, findings: &[String]) {
    let areas =
        Layout::vertical([Constraint::Length(3), Constraint::Length(5), Constraint::Length(5), Constraint::Min(0)]);
    let [bar, figures, plots, pane] = areas.areas(frame.area());
    draw_bar(frame, bar, history);
    frame.render_widget(Paragraph::new(figure_lines(history)).block(Block::bordered().title(" now ")), figures);
    draw_plots(frame, plots, history);
    let rows = usize::from(pane.height.saturating_sub(2));
    let lines: Vec<Line<'_>> = super::tail(findings, rows).iter().map(|text| finding(text)).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" findings (q or Ctrl-C ends) ")), pane);
}

fn draw_bar(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let now = &history.now;
    let done = if now.goal == 0 { 0.0 } else { now.sessions as f64 / now.goal as f64 };
    let seconds = history.elapsed.as_secs();
    let title = format!(" murre-bench: {}, {}:{:02} ", now.stage, seconds / 60, seconds % 60);
    let bar = Gauge::default()
        .block(Block::bordered().title(title))
        .gauge_style(Style::new().fg(Color::Green))
        .ratio(done.clamp(0.0, 1.0))
        .label(format!("{} of {} sessions", grouped(now.sessions), grouped(now.goal)));
    frame.render_widget(bar, area);
}

fn figure_lines(history: &History) -> Vec<Line<'static>> {
    let (now, rates) = (&history.now, &history.rates);
    let server = match history.resident {
        Some(resident) => {
            let each = history.bytes_per_session().map_or(String::new(), |bytes| format!(", {bytes:.0} B a session"));
            format!("{:.1} MB resident{each}, {:.2} cores", resident as f64 / 1e6, rates.cores)
        }
        None => "not measured: no --pid".to_owned(),
    };
    let server = format!("{server}; generator {:.2}", rates.own);
    let latency = match now.p99_us {
        0 => "none yet".to_owned(),
        _ => format!("p50 {} us, p99 {} us in the last second", grouped(now.p50_us), grouped(now.p99_us)),
    };
    let traffic = format!(
        "{:+.0} sessions/s, {:.0} POSTs/s, {:.0} notifications/s, {} ended",
        rates.sessions, rates.posted, rates.notified, now.ended
    );
    [("rates    ", traffic), ("latency  ", latency), ("server   ", server)]
        .into_iter()
        .map(|(name, text)| Line::from(vec![Span::from(name).bold(), Span::from(text)]))
        .collect()
}

fn draw_plots(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let newest = |width: u16| history.past.len().saturating_sub(usize::from(width.saturating_sub(2)));
    let rate = |area: Rect| -> Vec<u64> {
        let past = history.past.iter().skip(newest(area.width));
        past.map(|rates| rates.notified.max(rates.sessions).max(0.0) as u64).collect()
    };
    let cores: Vec<u64> =
        history.past.iter().skip(newest(right.width)).map(|rates| (rates.cores * 100.0) as u64).collect();
    // The value of the tallest column gives the scale.
    let plot = |what: &str, data: Vec<u64>| {
        let most = grouped(data.iter().copied().max().unwrap_or(0));
        Sparkline::default().block(Block::bordered().title(format!(" {what}, most {most} "))).data(data)
    };
    frame.render_widget(plot("sessions or pushes/s", rate(left)), left);
    frame.render_widget(plot("server, % of a core", cores), right);
}

fn finding(text: &str) -> Line<'_> {
    if text.starts_with("FAILED") { Line::from(text).red() } else { Line::from(text) }
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::view::Snapshot;

    fn picture(width: u16, height: u16, findings: &[String]) -> String {
        let mut history = History::new(vec![std::process::id()]);
        let snapshot = Snapshot {
            stage: "ramp".into(),
            goal: 1_000_000,
            sessions: 250_000,
            posted: 40,
            notified: 30,
            ended: 2,
            p50_us: 71,
            p99_us: 1_234,
        };
        history.take(snapshot, Instant::now() + Duration::from_secs(61));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &history, findings)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_where_the_run_is() {
        let findings: Vec<String> = (0..30).map(|n| format!("figure {n}")).collect();
        let picture = picture(100, 24, &findings);
        for wanted in [
            "murre-bench: ramp, 1:01",
            "250,000 of 1,000,000 sessions",
            "2 ended",
            "p50 71 us, p99 1,234 us",
            "MB resident",
            "B a session",
            "% of a core",
            "figure 29",
        ] {
            assert!(picture.contains(wanted), "{wanted} is missing in\n{picture}");
        }
        assert!(!picture.contains("figure 1 "), "the oldest findings make room");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (10, 4), (40, 9), (300, 3)] {
            picture(width, height, &["FAILED x".to_owned()]);
        }
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
