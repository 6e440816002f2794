//! The text that a policy is given.

/// Bins of a state's digits: 256 of equal width from -1 to 1.
const BINS: usize = 256;

/// The way in which prompts become tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptSpec {
    /// Tokens of a prompt at most; more are cut off.
    pub max_tokens: usize,
    /// The length to which lerobot's processors pad prompts, and the tokenizer that they take; empty where they have no such step.
    pub padding: String,
    pub tokenizer: String,
}

/// Returns the prompt of Pi0.5: the task and the normalized state in digits.
pub fn with_digits(task: &str, state: &[f32]) -> String {
    let digits: Vec<String> = state.iter().map(|&value| digit(value).to_string()).collect();
    format!("Task: {}, State: {};\nAction: ", cleaned(task), digits.join(" "))
}

/// Returns the prompt of Pi0-FAST, behind which actions are written.
pub fn with_digits_line(task: &str, state: &[f32]) -> String {
    let prompt = with_digits(task, state);
    prompt.strip_suffix("Action: ").unwrap_or(&prompt).to_owned()
}

/// Returns the prompt of Pi0, which ends with a line.
pub fn with_line(task: &str) -> String {
    if task.ends_with('\n') { task.to_owned() } else { format!("{task}\n") }
}

fn cleaned(task: &str) -> String {
    task.trim().replace(['_', '\n'], " ")
}

/// Returns the number of left edges that a value is not below, less one: -1 below all, 255 from the last on.
fn digit(value: f32) -> i64 {
    let value = f64::from(value);
    // In float64, as numpy compares; edges are whole multiples of 1/128, which are exact.
    let edges = (0..BINS).map(|at| -1.0 + at as f64 * (2.0 / BINS as f64));
    edges.take_while(|&edge| edge <= value).count() as i64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_digits_and_tasks_are_cleaned() {
        let digits = [-1.5, -1.0, -0.999, -0.9921875, 0.0, 0.9921874, 0.9921875, 7.0].map(digit);
        assert_eq!(digits, [-1, 0, 0, 1, 128, 254, 255, 255]);
        let prompt = with_digits(" pick_up the\ncube ", &[-1.0, 0.5]);
        assert_eq!(prompt, "Task: pick up the cube, State: 0 192;\nAction: ");
        assert_eq!(with_digits_line("go", &[-1.0]), "Task: go, State: 0;\n");
        assert_eq!((with_line("go").as_str(), with_line("go\n").as_str()), ("go\n", "go\n"));
    }
}
