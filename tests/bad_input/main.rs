//! Tests of what a user does wrong, or a disk: the real program on damaged inputs. Every mistake ends with its exit
//! code and a message that names the key, file or sample; samples that cannot be used are skipped; and nothing is lost.

mod bit_flips;
mod blocks;
mod checkpoints;
mod command_line;
mod episodes;
mod epochs;
mod evaluate;
mod fixture;
mod folders;
mod hub;
mod init;
mod models;
#[path = "../support/must.rs"]
mod must;
mod overwrite;
mod own_encoder;
mod plan;
mod preflight;
mod readme;
mod samples;
#[path = "../support/soak.rs"]
mod soak;
mod two_runs;
