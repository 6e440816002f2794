//! The characters of a script as words and the signs between them.

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text {
        text: String,
        quoted: bool,
    },
    /// `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME[@]}`, `$@`.
    Variable {
        name: String,
        default: Option<RawWord>,
        is_list: bool,
        quoted: bool,
    },
    /// `$((…))`.
    Arithmetic {
        text: String,
        quoted: bool,
    },
    /// `$(…)` and `` `…` ``, which nobody runs, but for `which NAME`.
    Command {
        quoted: bool,
    },
}

/// A word as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawWord(pub Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Word(RawWord),
    /// `NAME=(…)` or `NAME+=(…)`.
    Array {
        name: String,
        adds: bool,
        words: Vec<RawWord>,
    },
    /// Ends a command: a line, `;`, `&&`, `||`, `|`, `&`, `(`, `)`, `;;`.
    Sign(&'static str),
}

const MAX_DEPTH: usize = 16;

impl Part {
    /// Returns whether the part is in quotes, and is not split at blanks.
    pub fn is_quoted(&self) -> bool {
        match self {
            Part::Text { quoted, .. }
            | Part::Variable { quoted, .. }
            | Part::Arithmetic { quoted, .. }
            | Part::Command { quoted } => *quoted,
        }
    }
}

impl RawWord {
    /// Returns whether any part is in quotes: an empty word is one, then.
    pub fn is_quoted(&self) -> bool {
        self.0.iter().any(Part::is_quoted)
    }

    /// Returns the text of a word that is one text without quotes, as keywords are.
    pub fn plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Text { text, quoted: false }] => Some(text),
            _ => None,
        }
    }
}

/// Returns all tokens of a script.
///
/// # Errors
/// A quote or a parenthesis does not end, or they are nested too deep.
pub fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let text: Vec<char> = text.replace("\r\n", "\n").chars().collect();
    let mut lexer = Lexer { text: &text, at: 0, heredocs: Vec::new() };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    text: &'a [char],
    at: usize,
    /// The last lines of documents that begin behind this line.
    heredocs: Vec<String>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn skips(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c));
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips blanks, comments, lines that go on, and redirections.
    fn blanks(&mut self) -> Result<(), String> {
        loop {
            match self.peek(0) {
                Some(' ' | '\t') => self.at += 1,
                Some('\\') if self.peek(1) == Some('\n') => self.at += 2,
                Some('#') => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                Some('>' | '<') if self.peek(1) != Some('(') => self.redirection()?,
                _ => return Ok(()),
            }
        }
    }

    fn redirection(&mut self) -> Result<(), String> {
        let is_heredoc = self.peek(0) == Some('<') && self.peek(1) == Some('<') && self.peek(2) != Some('<');
        while self.peek(0).is_some_and(|c| "<>&|-".contains(c)) {
            self.at += 1;
        }
        while self.peek(0).is_some_and(|c| c == ' ' || c == '\t') {
            self.at += 1;
        }
        let word = self.word(0)?;
        if is_heredoc {
            let text = |part: &Part| if let Part::Text { text, .. } = part { text.clone() } else { String::new() };
            self.heredocs.push(word.0.iter().map(text).collect());
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Token>, String> {
        loop {
            self.blanks()?;
            let Some(first) = self.peek(0) else { return Ok(None) };
            if first == '\n' {
                self.at += 1;
                for end in std::mem::take(&mut self.heredocs) {
                    self.skip_document(&end);
                }
                return Ok(Some(Token::Sign("\n")));
            }
            for sign in ["&&", "||", ";;", ";", "|", "&", "(", ")"] {
                if self.skips(sign) {
                    return Ok(Some(Token::Sign(sign)));
                }
            }
            if let Some(array) = self.array()? {
                return Ok(Some(array));
            }
            let word = self.word(0)?;
            // `2>&1`.
            let is_number =
                word.plain().is_some_and(|text| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit()));
            if !(is_number && self.peek(0).is_some_and(|c| c == '>' || c == '<')) {
                return Ok(Some(Token::Word(word)));
            }
        }
    }

    fn skip_document(&mut self, end: &str) {
        while self.at < self.text.len() {
            let rest = &self.text[self.at..];
            let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
            let line: String = rest[..length].iter().collect();
            self.at += (length + 1).min(rest.len());
            if line.trim() == end {
                return;
            }
        }
    }

    fn array(&mut self) -> Result<Option<Token>, String> {
        let start = self.at;
        let name = self.name();
        let adds = self.skips("+=");
        if name.is_empty() || !(adds || self.skips("=")) || !self.skips("(") {
            self.at = start;
            return Ok(None);
        }
        let mut words = Vec::new();
        loop {
            self.blanks()?;
            match self.peek(0) {
                None => return Err(format!("the list of `{name}` is not closed")),
                Some(')') => {
                    self.at += 1;
                    return Ok(Some(Token::Array { name, adds, words }));
                }
                Some('\n' | ';' | '&' | '|' | '(') => self.at += 1,
                Some(_) => words.push(self.word(0)?),
            }
        }
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while self
            .peek(0)
            .is_some_and(|c| c == '_' || c.is_ascii_alphabetic() || (self.at > start && c.is_ascii_digit()))
        {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }

    fn word(&mut self, depth: usize) -> Result<RawWord, String> {
        let begin = self.at;
        let word = self.parts(depth, |c| c.is_whitespace() || ";&|()<>".contains(c))?;
        if self.at == begin && self.peek(0).is_some_and(|c| c != '\n') {
            // A character that is no part of anything read here.
            self.at += 1;
        }
        Ok(word)
    }

    /// Returns the parts up to a character that ends them, or the end.
    fn parts(&mut self, depth: usize, ends: impl Fn(char) -> bool) -> Result<RawWord, String> {
        if depth > MAX_DEPTH {
            return Err("quotes and defaults are nested too deeply".to_owned());
        }
        let mut parts = Vec::new();
        while let Some(c) = self.peek(0).filter(|c| !ends(*c)) {
            match c {
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' => {
                    self.at += 1;
                    let next = self.peek(0).map(String::from).unwrap_or_default();
                    self.at += 1;
                    push(&mut parts, &next, true);
                }
                '\'' => {
                    self.at += 1;
                    let text = self.until('\'')?;
                    push(&mut parts, &text, true);
                }
                '"' => {
                    self.at += 1;
                    push(&mut parts, "", true);
                    self.double(&mut parts, depth)?;
                }
                '$' | '`' => parts.push(self.expansion(depth, false)?),
                c => {
                    self.at += 1;
                    push(&mut parts, c.encode_utf8(&mut [0; 4]), false);
                }
            }
        }
        Ok(RawWord(parts))
    }

    /// Reads up to the quote that ends a text in double quotes.
    fn double(&mut self, parts: &mut Vec<Part>, depth: usize) -> Result<(), String> {
        loop {
            match self.peek(0) {
                None => return Err("a double quote is not closed".to_owned()),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\\') if self.peek(1) == Some('\n') => self.at += 2,
                Some('\\') if self.peek(1).is_some_and(|c| "\"\\$`".contains(c)) => {
                    let next = self.peek(1).map(String::from).unwrap_or_default();
                    self.at += 2;
                    push(parts, &next, true);
                }
                Some('$' | '`') => parts.push(self.expansion(depth, true)?),
                Some(c) => {
                    self.at += 1;
                    push(parts, c.encode_utf8(&mut [0; 4]), true);
                }
            }
        }
    }

    fn until(&mut self, end: char) -> Result<String, String> {
        let rest = &self.text[self.at..];
        let length =
            rest.iter().position(|c| *c == end).ok_or_else(|| format!("a quotation with {end} is not closed"))?;
        self.at += length + 1;
        Ok(rest[..length].iter().collect())
    }

    fn expansion(&mut self, depth: usize, quoted: bool) -> Result<Part, String> {
        if self.skips("`") {
            let text = self.until('`')?;
            return Ok(command(&text, quoted));
        }
        if self.skips("$((") {
            let text = self.balanced(2)?;
            return Ok(Part::Arithmetic { text, quoted });
        }
        if self.skips("$(") {
            let text = self.balanced(1)?;
            return Ok(command(&text, quoted));
        }
        if self.skips("${") {
            return self.braces(depth, quoted);
        }
        self.at += 1;
        let variable =
            |name: String| Part::Variable { is_list: name == "@" || name == "*", name, default: None, quoted };
        match self.peek(0) {
            Some(c) if c == '_' || c.is_ascii_alphabetic() => Ok(variable(self.name())),
            Some(c) if c.is_ascii_digit() || "@*#?$!-".contains(c) => {
                self.at += 1;
                Ok(variable(c.to_string()))
            }
            _ => Ok(Part::Text { text: "$".to_owned(), quoted }),
        }
    }

    /// Reads `${NAME…}` behind its brace.
    fn braces(&mut self, depth: usize, quoted: bool) -> Result<Part, String> {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c.is_ascii_alphanumeric() || "_@*".contains(c)) {
            self.at += 1;
        }
        let name: String = self.text[start..self.at].iter().collect();
        let is_list = self.skips("[@]") || self.skips("[*]") || name == "@" || name == "*";
        let is_default = !name.is_empty() && (self.skips(":-") || self.skips(":=") || self.skips("-"));
        if is_default {
            let default = Some(self.parts(depth + 1, |c| c == '}')?);
            return match self.skips("}") {
                true => Ok(Part::Variable { name, default, is_list, quoted }),
                false => Err(format!("the expansion of `{name}` is not closed")),
            };
        }
        if self.skips(":+") || self.skips("+") {
            let other = self.parts(depth + 1, |c| c == '}')?;
            if !self.skips("}") {
                return Err(format!("the expansion of `{name}` is not closed"));
            }
            // `${LIST[@]+"${LIST[@]}"}` is how a list that may be empty is written under `set -u`.
            let itself =
                other.0.into_iter().find(|part| matches!(part, Part::Variable { name: it, .. } if *it == name));
            return Ok(itself.unwrap_or(Part::Command { quoted }));
        }
        match self.skips("}") {
            true => Ok(Part::Variable { name, default: None, is_list, quoted }),
            // Another manner of expansion.
            false => {
                self.until('}')?;
                Ok(Part::Command { quoted })
            }
        }
    }

    /// Returns the text up to so many parentheses that close what was opened.
    fn balanced(&mut self, closing: usize) -> Result<String, String> {
        let (start, mut open) = (self.at, closing);
        while open > 0 {
            match self.peek(0) {
                None => return Err("a parenthesis is not closed".to_owned()),
                Some('(') => open += 1,
                Some(')') => open -= 1,
                Some(_) => {}
            }
            self.at += 1;
        }
        Ok(self.text[start..self.at - closing].iter().collect())
    }
}

/// Returns the part that a command in the place of a word stands for: for `$(which lerobot-train)` the program itself, whatever its
/// folder; the result of any other command is unknown.
fn command(text: &str, quoted: bool) -> Part {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        ["which", name] | ["command", "-v", name] if is_name(name) => {
            Part::Text { text: name.to_owned(), quoted: true }
        }
        _ => Part::Command { quoted },
    }
}

fn push(parts: &mut Vec<Part>, text: &str, quoted: bool) {
    match parts.last_mut() {
        Some(Part::Text { text: last, quoted: is }) if *is == quoted => last.push_str(text),
        _ => parts.push(Part::Text { text: text.to_owned(), quoted }),
    }
}
