//! The commands of a script, one after another, with the variables that they see.

use super::condition::holds;
use super::lex::{Part, RawWord, Token, tokens};
use super::value::{Variables, Word};
use crate::config::import::variables;

/// The commands that a script would run.
#[derive(Default)]
pub struct Script {
    /// The words of every command, variables in their place.
    pub commands: Vec<Vec<Word>>,
    /// Options that only some runs of the script add.
    pub conditional: Vec<Conditional>,
}

/// An option in a list that a script adds to under a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditional {
    pub option: String,
    /// The condition does not hold for the script as it is; else nobody knows.
    pub is_off: bool,
}

/// The treatment of the commands of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Skipped,
    Unknown,
}

/// A block that is open: `if`, a loop, a function.
struct Block {
    word: &'static str,
    state: State,
    /// The result of the conditions of an `if` so far.
    taken: Option<bool>,
    /// True while its commands are conditions.
    asks: bool,
}

/// Reads a script.
///
/// # Errors
/// A quote does not end, or a value is larger than is taken.
pub fn read(text: &str) -> Result<Script, String> {
    let mut reader =
        Reader { script: Script::default(), variables: Variables::default(), blocks: Vec::new(), last: None };
    let mut command: Vec<Token> = Vec::new();
    // What stands before the command: `&&` and `||` make it depend on the one before.
    let mut before = "\n";
    for token in tokens(text)?.into_iter().chain([Token::Sign("\n")]) {
        match token {
            Token::Sign(sign) => {
                if !command.is_empty() {
                    reader.run(&std::mem::take(&mut command), before)?;
                    before = sign;
                } else if sign != "\n" {
                    before = sign;
                }
            }
            token => command.push(token),
        }
    }
    Ok(reader.script)
}

struct Reader {
    script: Script,
    variables: Variables,
    blocks: Vec<Block>,
    /// The success of the last command, where it is known.
    last: Option<bool>,
}

impl Reader {
    fn state(&self) -> State {
        let states = self.blocks.iter().map(|block| if block.asks { State::Runs } else { block.state });
        states.fold(State::Runs, |all, state| match (all, state) {
            (State::Skipped, _) | (_, State::Skipped) => State::Skipped,
            (State::Unknown, _) | (_, State::Unknown) => State::Unknown,
            _ => State::Runs,
        })
    }

    fn run(&mut self, mut command: &[Token], mut before: &'static str) -> Result<(), String> {
        loop {
            let first = match command.first() {
                Some(Token::Word(word)) => word.plain().unwrap_or_default(),
                _ => "",
            };
            match first {
                "if" => self.open("if", true),
                "function" => {
                    self.open("{", false);
                    return Ok(());
                }
                "for" | "while" | "until" | "case" | "select" => {
                    self.open("loop", false);
                    return Ok(());
                }
                "{" => self.open("{", false),
                "then" | "do" => self.ask(false),
                "elif" => self.other(true),
                "else" => self.other(false),
                "fi" | "done" | "esac" | "}" => {
                    self.blocks.pop();
                    return Ok(());
                }
                _ => return self.simple(command, before),
            }
            (command, before) = (&command[1..], "\n");
            if command.is_empty() {
                return Ok(());
            }
        }
    }

    fn open(&mut self, word: &'static str, asks: bool) {
        let state = match word {
            "if" => State::Skipped,
            "{" => State::Runs,
            _ => State::Unknown,
        };
        self.blocks.push(Block { word, state, taken: Some(false), asks });
    }

    /// Handles `then` and the end of a condition.
    fn ask(&mut self, asks: bool) {
        let last = self.last;
        if let Some(block) = self.blocks.last_mut().filter(|block| block.word == "if") {
            block.state = match (block.taken, last) {
                (Some(true), _) | (_, Some(false)) => State::Skipped,
                (Some(false), Some(true)) => State::Runs,
                _ => State::Unknown,
            };
            block.taken = match (block.taken, last) {
                (Some(true), _) | (Some(false), Some(true)) => Some(true),
                (taken, Some(false)) => taken,
                _ => None,
            };
            block.asks = asks;
        }
    }

    /// Handles `elif`, which asks again, and `else`, which is what is left.
    fn other(&mut self, asks: bool) {
        if let Some(block) = self.blocks.last_mut().filter(|block| block.word == "if") {
            block.asks = asks;
            block.state = match block.taken {
                Some(true) => State::Skipped,
                Some(false) => State::Runs,
                None => State::Unknown,
            };
        }
    }

    fn simple(&mut self, command: &[Token], before: &'static str) -> Result<(), String> {
        let asks = self.blocks.last().is_some_and(|block| block.asks);
        let mut state = self.state();
        if !asks {
            state = match (before, self.last) {
                _ if state != State::Runs => state,
                ("&&", Some(false)) | ("||", Some(true)) => State::Skipped,
                ("&&" | "||", None) => State::Unknown,
                _ => state,
            };
        }
        let mut words = Vec::new();
        let mut is_assignment = true;
        for token in command {
            match token {
                Token::Array { name, adds, words } => self.list(name, *adds, words, state)?,
                Token::Word(word) => match is_assignment.then(|| assignment(word)).flatten() {
                    Some((name, adds, value)) => self.assign(&name, adds, &value, state)?,
                    None if is_assignment
                        && matches!(word.plain(), Some("export" | "local" | "declare" | "readonly")) => {}
                    None => {
                        is_assignment = false;
                        words.extend(self.variables.expand(word)?);
                    }
                },
                Token::Sign(_) => {}
            }
        }
        if words.is_empty() {
            self.last = Some(true);
            return Ok(());
        }
        let found = holds(&words);
        self.last = match (asks, before, self.last) {
            (true, "&&", Some(last)) => found.map(|found| last && found),
            (true, "||", Some(last)) => found.map(|found| last || found),
            (true, "&&" | "||", None) => None,
            _ => found,
        };
        if !asks && state != State::Skipped {
            self.with_environment(&mut words);
            self.script.commands.push(words);
        }
        Ok(())
    }

    /// Puts variables before a command that reads them.
    fn with_environment(&self, words: &mut Vec<Word>) {
        for name in variables::of(words) {
            if let Some([value]) = self.variables.0.get(*name).map(Vec::as_slice)
                && !value.text.contains(' ')
            {
                words.insert(0, Word { text: format!("{name}={}", value.text), ..value.clone() });
            }
        }
    }

    fn assign(&mut self, name: &str, adds: bool, value: &RawWord, state: State) -> Result<(), String> {
        let mut word = self.variables.join(value)?;
        self.note(word.text.split_whitespace().map(str::to_owned), state);
        let before = self.variables.0.get(name).and_then(|words| words.first()).cloned();
        if adds && let Some(before) = before {
            word.text = before.text + &word.text;
            word.unset |= before.unset;
            word.unknown |= before.unknown;
        }
        match state {
            State::Runs => drop(self.variables.0.insert(name.to_owned(), vec![word])),
            State::Unknown => self.forget(name),
            State::Skipped => {}
        }
        Ok(())
    }

    fn list(&mut self, name: &str, adds: bool, raw: &[RawWord], state: State) -> Result<(), String> {
        let mut words = Vec::new();
        for word in raw {
            words.extend(self.variables.expand(word)?);
        }
        self.note(words.iter().flat_map(|word| word.text.split_whitespace()).map(str::to_owned), state);
        match state {
            State::Runs if adds => self.variables.0.entry(name.to_owned()).or_default().extend(words),
            State::Runs => drop(self.variables.0.insert(name.to_owned(), words)),
            // What was in it before is in it in any case.
            State::Unknown if !adds => self.forget(name),
            State::Unknown | State::Skipped => {}
        }
        Ok(())
    }

    /// Forgets a variable that a block sets which may or may not run.
    fn forget(&mut self, name: &str) {
        self.variables.0.insert(name.to_owned(), vec![Word { unknown: true, ..Word::default() }]);
    }

    /// Keeps the options among words that are not always there.
    fn note(&mut self, words: impl Iterator<Item = String>, state: State) {
        if state == State::Runs {
            return;
        }
        let is_off = state == State::Skipped;
        let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
        self.script.conditional.extend(options.map(|option| Conditional { option, is_off }));
    }
}

/// Splits `NAME=value` and `NAME+=value`.
fn assignment(word: &RawWord) -> Option<(String, bool, RawWord)> {
    let Some(Part::Text { text, quoted: false }) = word.0.first() else { return None };
    let (name, value) = text.split_once('=')?;
    let (name, adds) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(is_name) {
        return None;
    }
    let mut parts = word.0.clone();
    parts[0] = Part::Text { text: value.to_owned(), quoted: false };
    Some((name.to_owned(), adds, RawWord(parts)))
}
