//! The command line: one file per command. Arguments are parsed here and resolved by the commands.
//!
//! A command fails with what keeps it from its end: a [`UsageError`] where the user has to change something first. [`exit::of`] returns
//! the exit code of an error.

mod act;
mod asking;
mod certs;
mod chat;
mod check;
mod checkpoint;
mod compare;
mod completions;
mod data;
mod decode_worker;
mod doctor;
mod doctor_gpus;
pub mod dotted;
mod drill;
mod environment;
mod evaluate;
pub mod exit;
mod finding;
mod forecast;
mod generate;
mod import;
mod init;
mod judge_policy;
mod launch;
mod main_with;
mod models;
mod open_files;
mod outputs;
mod parity;
mod parity_layout;
mod part;
mod plan;
mod report;
mod run;
mod sample;
mod scale;
mod schema;
mod serve;
mod serve_policy;
mod top;
mod trace;
mod usage;
mod version;

pub use main_with::main_with;
pub use usage::UsageError;

use clap::{CommandFactory, Parser, Subcommand};
use environment::{environment, tell_ignored};
use std::process::ExitCode;

/// Train language, vision-language, audio and diffusion models, and robot policies.
#[derive(Parser)]
#[command(name = "loongforge", version, about, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  loongforge data digits --out runs/quickstart/data              make the quick start's data and model folder
  loongforge run configs/quickstart.yaml                         train on this machine, all actors in one process
  loongforge run configs/quickstart.yaml train.lr=1e-3           change a value
  loongforge run configs/quickstart.yaml --processes             one process per actor
  loongforge run configs/quickstart.yaml --resume                resume from the last checkpoint
  loongforge check configs/quickstart.yaml --show-origin         every value, and where it was set
  loongforge plan my.yaml --simulate --calibrate runs/my         the time of a step, and what limits it
  loongforge drill my.yaml --faults \"encoder/1: kill at step 5\"   inject faults, and see that nothing changes
  loongforge top runs/quickstart                                 watch a running job; also prints the address of its web page
  loongforge launch my.yaml --on slurm --gpus-per-node 8 --tls certs > job.sh
  loongforge checkpoint inspect runs/quickstart/checkpoints/step-00000750
  loongforge generate runs/quickstart/checkpoints/step-00000750 --image 4071.png --prompt \"Read the number.\"
  loongforge chat runs/quickstart                                chat with it
  loongforge serve runs/quickstart --port 8000                   OpenAI's API at http://127.0.0.1:8000/v1
  loongforge evaluate runs/quickstart runs/quickstart/data/held_out.jsonl";

#[derive(Subcommand)]
enum Command {
    /// Train: the whole run on this machine, or one role of it
    #[command(visible_alias = "train")]
    Run(run::RunArgs),
    /// Scale an encoder pool of a running job
    Scale(scale::ScaleArgs),
    /// Inject faults into a run and compare it with the fault-free run
    Drill(drill::DrillArgs),
    /// Write a first config for a model and data of your own
    Init(init::InitArgs),
    /// Translate a config or launch script of another trainer
    Import(import::ImportArgs),
    /// Check a config and report every error at once, without running it
    Check(check::CheckArgs),
    /// Show the plan of the first steps and its memory, or simulate the run
    Plan(plan::PlanArgs),
    /// Inspect, verify, compare and convert checkpoints
    Checkpoint(checkpoint::CheckpointArgs),
    /// Generate text from prompts of text, pictures and recordings
    Generate(generate::GenerateArgs),
    /// Chat with a model in the terminal
    Chat(chat::ChatArgs),
    /// Serve a language model over OpenAI's API
    Serve(serve::ServeArgs),
    /// Generate pictures and clips with a diffusion model
    Sample(sample::SampleArgs),
    /// Evaluate a model on held-out samples
    Evaluate(evaluate::EvaluateArgs),
    /// Print a robot policy's actions for one observation
    Act(act::ActArgs),
    /// Serve a robot policy to robots and simulators
    ServePolicy(serve_policy::ServePolicyArgs),
    /// Count a robot policy's successes in the task Pads, or compare its actions with recorded ones
    JudgePolicy(judge_policy::JudgePolicyArgs),
    /// List the built-in model configs with parameters, FLOPs and memory
    Models(models::ModelsArgs),
    /// Inspect, verify, convert and pack data sets
    Data(data::DataArgs),
    /// Watch a running job in the terminal
    Top(top::TopArgs),
    /// Compare runs: config differences, losses, speed
    Compare(compare::CompareArgs),
    /// Write a one-file HTML report of a finished run
    Report(report::ReportArgs),
    /// Write the timeline of a run's last steps, for ui.perfetto.dev
    Trace(trace::TraceArgs),
    /// Print a job script or manifest for Slurm, Kubernetes or ssh
    Launch(launch::LaunchArgs),
    /// Make TLS certificates for a run over a network
    Certs(certs::CertsArgs),
    /// Check this machine: devices, memory, limits, sandbox
    Doctor(doctor::DoctorArgs),
    /// Print the JSON schema of configs, for editors
    Schema(schema::SchemaArgs),
    /// Print completions for a shell, or write man pages
    Completions(completions::CompletionsArgs),
    /// Compare computed numbers with a fixture of reference numbers
    #[command(hide = true)]
    Parity(parity::ParityArgs),
    /// Decode pictures from standard input, sandboxed
    #[command(hide = true)]
    DecodeWorker(decode_worker::DecodeWorkerArgs),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails as the command does.
    pub fn dispatch(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(args) => run::run(args),
            Command::Scale(args) => scale::scale(args),
            Command::Drill(args) => drill::drill(args),
            Command::Init(args) => init::init(args),
            Command::Import(args) => import::import(args),
            Command::Check(args) => check::check(args),
            Command::Plan(args) => plan::plan(args),
            Command::Checkpoint(args) => checkpoint::checkpoint(args),
            Command::Generate(args) => generate::generate(args),
            Command::Chat(args) => chat::chat(args),
            Command::Serve(args) => serve::serve(args),
            Command::Sample(args) => sample::sample(args),
            Command::Evaluate(args) => evaluate::evaluate(args),
            Command::Act(args) => act::act(args),
            Command::ServePolicy(args) => serve_policy::serve_policy(args),
            Command::JudgePolicy(args) => judge_policy::judge_policy(args),
            Command::Models(args) => models::models(args),
            Command::Data(args) => data::data(args),
            Command::Top(args) => top::top(args),
            Command::Compare(args) => compare::compare(args),
            Command::Report(args) => report::report(args),
            Command::Trace(args) => trace::trace(args),
            Command::Launch(args) => launch::launch(args),
            Command::Certs(args) => certs::certs(args),
            Command::Doctor(args) => doctor::doctor(args),
            Command::Schema(args) => schema::schema(args),
            Command::Completions(args) => completions::completions(args, Self::command()),
            Command::Parity(args) => parity::parity(args),
            Command::DecodeWorker(args) => Ok(decode_worker::decode_worker(args)),
        }
    }

    /// Returns whether libtorch will compute in this process, or it is asked whether it could.
    pub fn computes(&self) -> bool {
        !matches!(
            self.command,
            Command::Init(_)
                | Command::Plan(_)
                | Command::Checkpoint(_)
                | Command::Data(_)
                | Command::Models(_)
                | Command::Scale(_)
                | Command::Drill(_)
                | Command::Top(_)
                | Command::Compare(_)
                | Command::Report(_)
                | Command::Trace(_)
                | Command::Launch(_)
                | Command::Certs(_)
                | Command::Schema(_)
                | Command::Completions(_)
                | Command::DecodeWorker(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_argument_says_what_it_is() {
        fn silent(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            let path = format!("{path} {}", command.get_name());
            let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_help().is_none());
            found.extend(arguments.map(|arg| format!("{path}: {}", arg.get_id())));
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                found.extend(inner.get_about().is_none().then(|| format!("{path} {}", inner.get_name())));
                silent(inner, &path, found);
            }
        }
        let mut found = Vec::new();
        silent(&Cli::command(), "", &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn examples_of_simulations_name_their_costs() {
        let command = Cli::command();
        let plan = command.find_subcommand("plan").unwrap();
        for help in [&command, plan].map(|command| command.get_after_help().unwrap().to_string()) {
            for line in help.lines().filter(|line| line.contains("--simulate")) {
                assert!(["--calibrate", "--costs", "--device "].iter().any(|costs| line.contains(costs)), "{line}");
            }
        }
    }

    #[test]
    fn help_shows_examples() {
        const COMMANDS: &str = "|run|scale|drill|check|plan|checkpoint|generate|chat|serve|evaluate|models|data|top|trace|compare|report|\
            launch|certs|sample|import|init|checkpoint inspect|checkpoint export|checkpoint export-hf|checkpoint export-gguf|\
            checkpoint push|data inspect|data verify|data stats|data convert|data pack|data merge|data digits|data emoji|\
            data spoken-digits|data heard-and-seen|data roll-call|data diffusion-digits|data diffusion-motion";
        for words in COMMANDS.split('|') {
            let mut command = Cli::command();
            for word in words.split_whitespace() {
                command = command.find_subcommand(word).expect("a command").clone();
            }
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example") && help.contains("  loongforge "), "{words:?}:\n{help}");
        }
    }
}
