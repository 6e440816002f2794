//! Counted successes in a table.

use loongforge_core::robot::wilson;

/// The number of episodes in which something was reached.
pub struct Row {
    pub what: String,
    pub successes: usize,
    pub count: usize,
}

/// Returns a line for each row, under a title: successes, their rate and its interval.
pub fn table(title: &str, rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.len() + 2).chain([title.len()]).max().unwrap_or(0);
    let head = format!("{title:<width$}  {:>18}  95 % interval", "successes");
    let line = |row: &Row| {
        let [low, high] = wilson(row.successes, row.count).map(|rate| 100.0 * rate);
        let rate = 100.0 * row.successes as f64 / row.count.max(1) as f64;
        let successes = format!("{} of {} ({rate:.1} %)", row.successes, row.count);
        format!("{:<width$}  {successes:>18}  {low:.1} to {high:.1} %", format!("  {}", row.what))
    };
    std::iter::once(head).chain(rows.iter().map(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_stands_beside_its_interval() {
        let row = |what: &str, successes| Row { what: what.to_owned(), successes, count: 400 };
        let text = table("Pads", &[row("the policy", 392), row("random actions", 0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "  the policy      392 of 400 (98.0 %)  96.1 to 99.0 %");
        assert_eq!(lines[2], "  random actions    0 of 400 (0.0 %)  0.0 to 1.0 %");
    }
}
