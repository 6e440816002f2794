//! The page of a run in a real browser, without a window. Skipped, with a word, where there is no Chromium.

use crate::must;
use loongforge_actors::watch::{Watch, still_page};
use loongforge_core::message::{Activity, ActorId, EdgeLoad, Timings, Trace, TraceSpan};
use loongforge_core::observe::{Board, News, RunInfo, StepMetrics};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns `CHROME`, or the first that is on the path.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        || std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|at| at.is_file());
    std::env::var_os("CHROME").map(PathBuf::from).or_else(on_path)
}

/// Tells a watch of the run's steps of these numbers.
fn tell(watch: &Watch, steps: Range<u64>) {
    let (encoder, foundation) = (ActorId::encoder(0), ActorId::foundation(0));
    for step in steps {
        let at = step * 1_000_000;
        let span = |activity, index, start, end| TraceSpan { activity, step, index, start: at + start, end: at + end };
        for (actor, activity) in [(encoder, Activity::Encode), (foundation, Activity::Pack)] {
            let spans = vec![span(activity, Some(0), 0, 600_000), span(Activity::WaitMail, None, 600_000, 900_000)];
            let edges = vec![EdgeLoad { to: foundation, in_flight: 1 << 20, credit: 4 << 20, num_unsent: 3 }];
            watch.tell(News::Trace(actor, Trace { now: at + 950_000, spans, num_lost: 0, edges }));
        }
        let metrics = StepMetrics {
            step,
            loss: 4.0 / (step + 1) as f64,
            tokens: 4096,
            tokens_per_s: 4000.0,
            step_ms: 1000.0,
            ..StepMetrics::default()
        };
        let timings = Timings { busy: 0.75, idle: 0.25, packs: 0.7, ..Timings::default() };
        watch.tell(News::Step(Box::new(metrics), vec![(encoder, timings), (foundation, timings)]));
    }
}

/// Loads a page in a browser; returns its document, and what the browser logged.
fn opened(browser: &Path, dir: &Path, url: &str) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(["--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom"])
        .arg(url)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_page_that_is_a_file_draws_itself() {
    let Some(browser) = browser() else {
        return must::skip("browser", "no chromium, chromium-browser, google-chrome or chrome on the path");
    };
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo { name: "</script><b>run</b>".into(), num_steps: 12, ..RunInfo::default() };
    let mut board = Board::new(info, 100, 1);
    for step in 0..12 {
        // A constant rate, as means of many steps round it.
        let learning_rate = f64::from_bits(1e-4_f64.to_bits() + step % 2);
        let loss = 4.0 / (step + 1) as f64;
        let metrics = StepMetrics { step, loss, learning_rate, step_ms: 500.0, ..StepMetrics::default() };
        board.take(News::Step(Box::new(metrics), Vec::new()), step * 500_000_000, 0);
    }
    board.take(News::Evaluated { step: 6, losses: vec![("val".into(), 0.75)] }, 6_000_000_000, 0);
    board.take(News::Evaluated { step: 12, losses: vec![("val".into(), 0.5)] }, 6_000_000_000, 0);
    let path = dir.path().join("page.html");
    std::fs::write(&path, still_page(&board.status(), &board.history(), Some(b"no picture"))).unwrap();
    let (page, errors) = opened(&browser, dir.path(), &format!("file://{}", path.display()));
    for wanted in ["&lt;/script&gt;&lt;b&gt;run", "training 0.3333", "val 0.5", "step 12 of 12", "data-ready=\"1\""] {
        assert!(page.contains(wanted), "{wanted} is not in the page:\n{page}\n{errors}");
    }
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}

#[test]
fn the_page_draws_what_the_run_does() {
    let Some(browser) = browser() else {
        let why = "no chromium, chromium-browser, google-chrome or chrome on the path, and CHROME is not set";
        return must::skip("browser", why);
    };
    let dir = tempfile::tempdir().unwrap();
    let info = RunInfo {
        name: "<b>run</b> & \"co\"".into(),
        dir: "runs/x".into(),
        actors: vec![ActorId::encoder(0), ActorId::foundation(0)],
        num_steps: 40,
        ..RunInfo::default()
    };
    let watch = Watch::start(&"127.0.0.1:0".parse().unwrap(), dir.path(), Board::new(info, 100, 10)).unwrap();
    tell(&watch, 0..12);
    let (page, errors) = opened(&browser, dir.path(), &watch.url());
    for wanted in [
        // What a run is called is text, whatever it is.
        "&lt;b&gt;run&lt;/b&gt; &amp; \"co\"",
        "step 12 of 40, ETA 0:00:28",
        "<polyline",
        // The legend has the last value of each curve.
        "training 0.3333",
        "encoder/0: encode",
        "1.0 MiB of 4.0 MiB, 3 wait",
        "data-ready=\"1\"",
    ] {
        assert!(page.contains(wanted), "{wanted} is not in the page:\n{page}\n{errors}");
    }
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}

#[test]
fn the_address_of_a_run_that_was_restarted_shows_all_its_steps() {
    let Some(browser) = browser() else {
        return must::skip("browser", "no chromium, chromium-browser, google-chrome or chrome on the path");
    };
    let dir = tempfile::tempdir().unwrap();
    let start = |first_step: u64| {
        let actors = vec![ActorId::encoder(0), ActorId::foundation(0)];
        let info = RunInfo { name: "a run".into(), actors, num_steps: 40, first_step, ..RunInfo::default() };
        let earlier = (0..first_step).map(|step| StepMetrics { step, loss: 2.0, ..StepMetrics::default() });
        let board = Board::new(info, 100, 10).with_history(earlier.collect());
        Watch::start(&"127.0.0.1:0".parse().unwrap(), dir.path(), board).unwrap()
    };
    let before = start(0);
    tell(&before, 0..12);
    let address = before.url();
    drop(before);
    let after = start(12);
    tell(&after, 12..20);
    let (page, errors) = opened(&browser, dir.path(), &address);
    // The first curve is the training loss, with a point for each step.
    let curve = page.split_once("<polyline points=\"").and_then(|(_, rest)| rest.split('"').next());
    let curve = curve.unwrap_or_default();
    assert_eq!(curve.split(' ').count(), 20, "{curve:?} in the page:\n{page}\n{errors}");
    assert!(page.contains("step 20 of 40") && page.contains("data-ready=\"1\""), "{page}\n{errors}");
}

#[test]
fn nothing_of_the_page_is_wider_than_a_phone() {
    let Some(browser) = browser() else {
        return must::skip("browser", "no chromium, chromium-browser, google-chrome or chrome on the path");
    };
    let dir = tempfile::tempdir().unwrap();
    let (encoder, foundation) = (ActorId::encoder(0), ActorId::foundation(0));
    let actors = vec![encoder, foundation];
    let name = "a_run_with_a_long_name_of_many_words_and_numbers_2026_11_29".to_owned();
    let dir_of_run = format!("/data/someone/runs/{name}");
    let info = RunInfo { name, dir: dir_of_run, actors, num_steps: 1_000_000, ..RunInfo::default() };
    let mut board = Board::new(info, 100, 10);
    for step in 0..12 {
        let loss = 4.0 / (step + 1) as f64;
        let metrics = StepMetrics { step, loss, tokens_per_s: 123_456.0, ..StepMetrics::default() };
        let timings = Timings { busy: 0.75, units: 1.5, packs: 0.7, ..Timings::default() };
        let timings = vec![(encoder, timings), (foundation, timings)];
        board.take(News::Step(Box::new(metrics), timings), step * 500_000_000, 0);
    }
    let page = still_page(&board.status(), &board.history(), None).replace('&', "&amp;").replace('"', "&quot;");
    // A window has a least width of its own, a frame has none.
    let frame = format!(
        "<!doctype html><body>
<iframe id=\"phone\" width=\"360\" height=\"740\" srcdoc=\"{page}\"></iframe>
<script>
const look = () => {{
  const inside = document.getElementById(\"phone\").contentDocument;
  if (!inside || !inside.body || inside.body.dataset.ready !== \"1\") return setTimeout(look, 100);
  const root = inside.documentElement;
  const fits = root.scrollWidth <= root.clientWidth;
  document.body.dataset.width = fits ? \"fits\" : root.scrollWidth + \" of \" + root.clientWidth;
}};
look();
</script>"
    );
    let path = dir.path().join("phone.html");
    std::fs::write(&path, frame).unwrap();
    let (shown, errors) = opened(&browser, dir.path(), &format!("file://{}", path.display()));
    let width = shown.split_once("data-width=\"").and_then(|(_, rest)| rest.split('"').next());
    assert_eq!(width, Some("fits"), "{errors}");
}
