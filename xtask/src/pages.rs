//! The pages of the documentation: their headings, links and order. GitHub's anchors are what links are written for.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// A page and its text.
pub struct Page {
    /// Relative to the repository root.
    pub path: PathBuf,
    pub text: String,
}

/// A link of a page to another place of the repository.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    /// Counts from 1.
    pub line: usize,
    /// The begin and the end of the whole link in its line.
    pub span: (usize, usize),
    pub text: String,
    pub target: String,
}

/// Returns all pages: those at the root and everything in `docs`.
pub fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root)? {
        paths.push(entry?.path());
    }
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { paths.push(path) }
        }
    }
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "md") && path.is_file());
    paths.sort();
    let page = |path: PathBuf| {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Page { path: path.strip_prefix(root)?.to_owned(), text })
    };
    paths.into_iter().map(page).collect()
}

/// Returns the lines of a page outside of fenced blocks, counted from 1.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Returns what becomes of each fenced block of a page: it is tested, or shows an output, or needs something that its comment says.
pub fn blocks(text: &str) -> Vec<&str> {
    let (mut found, mut is_open, mut before) = (Vec::new(), false, "");
    for line in text.lines() {
        if line.starts_with("```") {
            let mark = before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->"));
            let otherwise = if line == "```text" { "outputs" } else { "tested" };
            if !is_open {
                found.push(mark.filter(|mark| mark.starts_with("needs: ")).unwrap_or(otherwise));
            }
            (is_open, before) = (!is_open, "");
        } else if !is_open && !line.trim().is_empty() {
            before = line.trim();
        }
    }
    found
}

/// Returns the links of a page that do not lead out of the repository.
pub fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let plain = without_code(line);
        let mut from = 0;
        while let Some(middle) = plain[from..].find("](").map(|at| at + from) {
            from = middle + 2;
            let Some(length) = plain[from..].find(')') else { break };
            let Some(begin) = opening(&plain[..middle]) else { continue };
            let target = &line[from..from + length];
            let is_here = !target.contains("://") && !target.starts_with("mailto:") && !target.is_empty();
            if is_here {
                let span = (begin, from + length + 1);
                let (text, target) = (line[begin + 1..middle].to_owned(), target.to_owned());
                found.push(Link { line: number, span, text, target });
            }
        }
    }
    found
}

/// Returns the bracket that the text of a link begins with.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices().rev() {
        match c {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(at),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the line with blanks in the place of what stands in backquotes.
fn without_code(line: &str) -> String {
    let mut within = false;
    let blank = |c: char| {
        within ^= c == '`';
        if within || c == '`' { " ".repeat(c.len_utf8()) } else { c.to_string() }
    };
    line.chars().map(blank).collect()
}

/// Returns the place that a link of `page` leads to, relative to the root, and its anchor.
pub fn place(page: &Path, target: &str) -> (PathBuf, Option<String>) {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut place = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::Normal(name) => place.push(name),
            _ => {}
        }
    }
    (place, anchor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Returns the anchors of a page's headings.
    fn anchors(text: &str) -> Vec<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
        let anchor = |(_, line): (usize, &str)| {
            let slug = slug(line.trim_start_matches('#').trim());
            let count = seen.entry(slug.clone()).or_insert(0);
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        };
        headings.map(anchor).collect()
    }

    fn slug(heading: &str) -> String {
        let mut text = heading.to_owned();
        // The text of a link counts, its target does not.
        while let Some((before, rest)) = text.split_once("](") {
            let after = rest.split_once(')').map_or("", |(_, after)| after);
            text = format!("{before}{after}");
        }
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    /// Returns every link that leads nowhere, a line each.
    fn broken(root: &Path) -> Result<(usize, Vec<String>)> {
        let (pages, mut count, mut broken) = (pages(root)?, 0, Vec::new());
        let by_path: BTreeMap<&Path, &Page> = pages.iter().map(|page| (page.path.as_path(), page)).collect();
        for page in &pages {
            for link in links(&page.text) {
                count += 1;
                let (path, anchor) = place(&page.path, &link.target);
                let what = match (by_path.get(path.as_path()), anchor) {
                    (_, None) if root.join(&path).exists() => continue,
                    (Some(other), Some(anchor)) if anchors(&other.text).contains(&anchor) => continue,
                    (Some(_), Some(anchor)) => format!("{} has no heading #{anchor}", path.display()),
                    _ => format!("there is no {}", path.display()),
                };
                broken.push(format!("{}:{}: {what}", page.path.display(), link.line));
            }
        }
        Ok((count, broken))
    }

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn links_and_headings_are_read_as_github_reads_them() {
        let text = "# One `run.x` (two)\n```\n[no](x.md)\n# no\n```\n## A [b](c.md) & d\n## A b  d\n`[no](y)` and [a [b] `c`](z.md#q), [out](https://x.y)";
        assert_eq!(anchors(text), ["one-runx-two", "a-b--d", "a-b--d-1"]);
        let found: Vec<(String, String)> = links(text).into_iter().map(|link| (link.text, link.target)).collect();
        assert_eq!(found, [("b".into(), "c.md".into()), ("a [b] `c`".into(), "z.md#q".into())]);
        assert_eq!(place(Path::new("docs/a/b.md"), "../../x.md#y"), ("x.md".into(), Some("y".into())));
        assert_eq!(place(Path::new("docs/b.md"), "#y"), ("docs/b.md".into(), Some("y".into())));
    }

    #[test]
    fn blocks_are_counted_by_what_they_need() {
        let text = "a\n<!-- needs: gpu -->\n```sh\nx\n```\n\n```text\n<!-- needs: no -->\n```\n```yaml\na: 1\n```\n";
        assert_eq!(blocks(text), ["needs: gpu", "outputs", "tested"]);
    }

    #[test]
    fn no_link_of_the_documentation_leads_nowhere() {
        let (count, broken) = broken(root()).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert!(count > 150, "{count} links");
    }

    /// The rows of the paths in `docs/architecture.md` name files that are there, and items that are in them.
    #[test]
    fn the_paths_to_read_name_what_is_there() {
        let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
        let (mut count, mut missing) = (0, Vec::new());
        for row in page.lines().filter(|line| line.starts_with("| `") && line.contains(".rs` |")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let file = cells[1].trim_matches('`');
            let text = fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("there is no {file}"));
            for name in cells[2].split(", ").map(|name| name.trim_matches('`')) {
                count += 1;
                let begins = |end: char| ["fn", "struct", "trait"].map(|kind| format!("{kind} {name}{end}"));
                let is_there = [begins('('), begins('<'), begins(':'), begins(' ')]
                    .concat()
                    .iter()
                    .any(|item| text.contains(item));
                missing.extend((!is_there).then(|| format!("{file} has no {name}")));
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        assert!(count > 40, "{count} names");
    }

    /// Each code of an error has a page in `docs/errors`, which `docs/errors.md` and `docs/SUMMARY.md` link to, and each page a code.
    #[test]
    fn every_error_code_is_explained() {
        let (mut codes, mut folders) = (BTreeSet::new(), vec![root().join("src"), root().join("actors")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() && name != "tests" {
                    folders.push(path);
                } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    let strings = text.split("\"LF").skip(1).filter_map(|rest| rest.get(..4));
                    codes.extend(
                        strings.filter(|code| code.bytes().all(|c| c.is_ascii_digit())).map(|code| format!("LF{code}")),
                    );
                }
            }
        }
        let [list, summary] =
            ["docs/errors.md", "docs/SUMMARY.md"].map(|page| fs::read_to_string(root().join(page)).unwrap());
        let mut explained = BTreeSet::new();
        for page in pages(root()).unwrap() {
            if page.path.starts_with("docs/errors") {
                let code = page.path.file_stem().unwrap().to_str().unwrap().to_owned();
                assert!(page.text.starts_with(&format!("# {code}: ")), "{}", page.path.display());
                assert!(list.contains(&format!("(errors/{code}.md)")), "docs/errors.md has no {code}");
                let heading = page.text.lines().next().unwrap().trim_start_matches("# ").replace('`', "");
                let line = format!("- [{heading}](errors/{code}.md)\n");
                assert!(summary.contains(&line), "docs/SUMMARY.md has no line {line}");
                explained.insert(code);
            }
        }
        assert_eq!(codes, explained);
        assert!(codes.len() >= 13, "{codes:?}");
    }
}
