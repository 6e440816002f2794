//! Names of files and folders by which a set is known.

/// The name of the file that makes a folder a set.
pub const INFO: &str = "meta/info.json";
/// Folders of a set, beside which a repository may have others.
pub const FOLDERS: [&str; 4] = ["meta", "data", "videos", "images"];
