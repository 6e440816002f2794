//! `cargo xtask book`: the documentation as a site with a search, made of the README and `docs` by mkdocs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::pages::{Page, blocks, links, pages, place};
use crate::tasks::run;
use crate::venv::venv;

/// The program that makes the site; nothing of it is needed to read or to build.
const MKDOCS: &str = "mkdocs==1.6.1";

/// A section of the navigation with its pages: a title and a path below `docs`, or the README.
type Section = (String, Vec<(String, PathBuf)>);

/// Makes the site, or says that mkdocs cannot be had; then it fails only where the site was asked `for_it`.
pub fn book(root: &Path, for_it: bool) -> Result<ExitCode> {
    let (folder, pages) = (root.join("target/book"), pages(root)?);
    let sources = folder.join("src");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    let sections = navigation(&pages)?;
    let listed: BTreeSet<&Path> =
        sections.iter().flat_map(|(_, pages)| pages).map(|(_, path)| path.as_path()).collect();
    for page in pages.iter().filter(|page| listed.contains(page.path.as_path())) {
        let to = sources.join(in_book(&page.path));
        fs::create_dir_all(to.parent().expect("a folder above"))?;
        fs::write(&to, rewritten(page, &listed)).with_context(|| to.display().to_string())?;
    }
    println!("{}", counted(&pages));
    copy_pictures(&root.join("docs"), &root.join("docs"), &sources)?;
    fs::write(folder.join("mkdocs.yml"), settings(&sections))?;
    let Some(venv) = venv(root, "mkdocs", MKDOCS)? else {
        return Ok(if for_it { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    };
    let mut make = Command::new(venv.join("bin/python"));
    make.args(["-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", "site", "--config-file", "mkdocs.yml"]);
    // It warns of a successor of its own, which is none of our business.
    make.current_dir(&folder).env("NO_MKDOCS_2_WARNING", "1");
    if run(&mut make)? != 0 {
        return Ok(ExitCode::FAILURE);
    }
    println!("{} pages: python3 -m http.server --directory {}", listed.len(), folder.join("site").display());
    Ok(ExitCode::SUCCESS)
}

/// Says how many blocks of the README and of `docs` are tested, and what the others need.
fn counted(pages: &[Page]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for page in pages.iter().filter(|page| page.path.starts_with("docs") || page.path == Path::new("README.md")) {
        blocks(&page.text).into_iter().for_each(|block| *counts.entry(block).or_default() += 1);
    }
    let counts: Vec<String> = counts.iter().map(|(block, count)| format!("{count} {block}")).collect();
    format!("blocks: {}", counts.join(", "))
}

/// Returns the sections of `docs/SUMMARY.md`, and behind them what it does not list.
fn navigation(pages: &[Page]) -> Result<Vec<Section>> {
    let summary = Path::new("docs/SUMMARY.md");
    let page = pages.iter().find(|page| page.path == summary).context("docs/SUMMARY.md")?;
    let mut sections: Vec<Section> = vec![(String::new(), Vec::new())];
    for line in page.text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Vec::new()));
        } else if line.starts_with("- ") {
            let Some(link) = links(line).pop() else { bail!("docs/SUMMARY.md: no link in {line:?}") };
            let (path, _) = place(summary, &link.target);
            sections.last_mut().expect("there is one").1.push((link.text, path));
        }
    }
    let listed: BTreeSet<PathBuf> =
        sections.iter().flat_map(|(_, pages)| pages).map(|(_, path)| path.clone()).collect();
    let others = pages
        .iter()
        .filter(|page| page.path.starts_with("docs") && !listed.contains(&page.path) && page.path != summary);
    let (mut more, mut decisions, mut evidence) = (Vec::new(), Vec::new(), Vec::new());
    for page in others {
        let heading = page.text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("");
        let list = match () {
            () if page.path.starts_with("docs/evidence") => &mut evidence,
            () if page.path.starts_with("docs/adr") => &mut decisions,
            () => &mut more,
        };
        list.push((heading.replace('`', ""), page.path.clone()));
    }
    let rest = [("More", more), ("Decisions", decisions), ("Evidence", evidence)];
    sections.extend(rest.map(|(title, pages)| (title.to_owned(), pages)));
    sections.retain(|(_, pages)| !pages.is_empty());
    Ok(sections)
}

/// Returns the path in the book of a page of the repository.
fn in_book(path: &Path) -> PathBuf {
    match path.strip_prefix("docs") {
        Ok(path) => path.to_owned(),
        Err(_) if path == Path::new("README.md") => "index.md".into(),
        Err(_) => path.to_owned(),
    }
}

/// Returns the text of a page, whose links lead to pages of the book; what is not in it is named without a link.
fn rewritten(page: &Page, listed: &BTreeSet<&Path>) -> String {
    let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
    let depth = in_book(&page.path).components().count() - 1;
    for link in links(&page.text).into_iter().rev() {
        let (path, anchor) = place(&page.path, &link.target);
        let is_picture = lines[link.line - 1][..link.span.0].ends_with('!');
        let new = match listed.contains(path.as_path()) || is_picture {
            true => {
                let anchor = anchor.map_or(String::new(), |anchor| format!("#{anchor}"));
                format!("[{}]({}{}{anchor})", link.text, "../".repeat(depth), in_book(&path).display())
            }
            false => link.text,
        };
        lines[link.line - 1].replace_range(link.span.0..link.span.1, &new);
    }
    lines.join("\n") + "\n"
}

fn copy_pictures(docs: &Path, folder: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            copy_pictures(docs, &path, to)?;
        } else if path.extension().is_some_and(|ext| ext == "png" || ext == "svg") {
            let new = to.join(path.strip_prefix(docs)?);
            fs::create_dir_all(new.parent().expect("a folder above"))?;
            fs::copy(&path, new)?;
        }
    }
    Ok(())
}

/// Returns mkdocs' settings.
fn settings(sections: &[Section]) -> String {
    let mut text = "site_name: loongforge\ndocs_dir: src\nuse_directory_urls: false\ntheme: { name: readthedocs, highlightjs: false }\n\
        plugins: [search]\nmarkdown_extensions: [tables, fenced_code, toc, sane_lists]\n\
        validation: { links: { not_found: warn, unrecognized_links: warn } }\nnav:\n"
        .to_owned();
    for (title, pages) in sections {
        if !title.is_empty() {
            let _ = writeln!(text, "  - {title:?}:");
        }
        let indent = if title.is_empty() { "  " } else { "    " };
        for (title, path) in pages {
            let _ = writeln!(text, "{indent}- {title:?}: {:?}", in_book(path).display().to_string());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_navigation_once_and_links_stay_in_the_book() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let pages = pages(root).unwrap();
        let sections = navigation(&pages).unwrap();
        let all: Vec<&Path> = sections.iter().flat_map(|(_, pages)| pages).map(|(_, path)| path.as_path()).collect();
        let listed: BTreeSet<&Path> = all.iter().copied().collect();
        assert_eq!(listed.len(), all.len(), "a page is listed twice");
        for page in &pages {
            let is_in = page.path.starts_with("docs") && page.path != Path::new("docs/SUMMARY.md");
            assert!(!is_in || listed.contains(page.path.as_path()), "{} is not in the book", page.path.display());
        }
        for page in pages.iter().filter(|page| listed.contains(page.path.as_path())) {
            for link in links(&rewritten(page, &listed)) {
                let (path, _) = place(&in_book(&page.path), &link.target);
                let is_page = listed.iter().any(|page| in_book(page) == path);
                let is_picture = path.extension().is_some_and(|ext| ext == "png" || ext == "svg");
                assert!(is_page || is_picture, "{}: {}", page.path.display(), link.target);
            }
        }
        assert!(settings(&sections).contains("\"index.md\"") && sections.len() > 6);
    }
}
