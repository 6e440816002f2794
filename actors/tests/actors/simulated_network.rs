//! Joining, commands and events over a simulated network: slow, torn, and with a peer that dies.

use crate::fake::{sample, spec};
use loongforge_actors::launch::WantedActor;
use loongforge_actors::launch::join::{
    Down, JoinServer, Joined, Line, Member, ReconnectRegistry, Roster, Terms, Up, gather, hear, join, line,
    remote_link, say,
};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use loongforge_core::transport::{Raw, Recovery, frame, link, raw};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::{TcpListener, TcpStream};

static POOLS: LazyLock<PoolSizes> = LazyLock::new(|| PoolSizes::of_roles(1, 2, 1));
const STEPS: u64 = 6;
const LEASE: Duration = Duration::from_secs(4);

type Done = turmoil::Result;

/// Joins and answers every command at once, as an engine without work would.
async fn member(role: Role, config: &'static str, steps_done: Rc<Cell<u64>>) -> Done {
    let connect = async || TcpStream::connect("scheduler:700").await;
    let actor = ActorId::new(role, 0);
    let hello = (config.to_owned(), WantedActor { role, pool: actor.pool, index: None });
    let joined = join(connect, "scheduler:700", hello, Duration::from_secs(20), |me| Ok(((), me.to_string().into())));
    let Joined { welcome, sender, receiver, .. } = joined.await?;
    let me = welcome.assignment.me;
    let come_back = Recovery::Connect(Box::new(move |wire, attempt, received| {
        Box::pin(async move {
            let mut stream = TcpStream::connect("scheduler:700").await?;
            let said = Up::Return { from: me, wire, attempt, received };
            stream.write_all(&frame(&said).unwrap()).await?;
            Ok(Raw::new(stream))
        })
    }));
    let (sender, mut receiver, carrier) =
        line(raw(sender, receiver), come_back, &Line { number: welcome.wire, lease: welcome.lease });
    let carrying = tokio::spawn(carrier);
    let paths = welcome.edges.iter().all(|(edge, path)| *path == std::path::Path::new(&edge.to.to_string()));
    assert!(paths, "edges lead to where their receivers listen");
    say(&sender, &Up::Event(Event::Ready)).await;
    while let Some(Down::Command(command)) = hear(&mut receiver).await? {
        let event = match command {
            Command::Read { from, until } if role == Role::Data => {
                let samples = (from.0..until.0).map(|position| sample(position, 1)).collect();
                Event::Measured { samples, bad: vec![] }
            }
            Command::Plan(plan) if role != Role::Data => {
                let (step, loss) = (plan.step, plan.step.0 as f64);
                Event::Reduced(StepReport { step, loss, grad_square_sum: 1.0, ..StepReport::default() })
            }
            Command::Commit(Commit { step, .. }) | Command::Abort { step } => {
                steps_done.set(steps_done.get() + 1);
                Event::Applied { step }
            }
            Command::Save { step, to, .. } => Event::Saved { step, to, files: vec![] },
            Command::Stop => {
                say(&sender, &Up::Event(Event::Stopped)).await;
                break;
            }
            _ => continue,
        };
        say(&sender, &Up::Event(event)).await;
    }
    sender.close().await;
    drop(receiver);
    carrying.await?;
    Ok(())
}

/// Gathers the members and conducts a run without actors.
async fn scheduler(timeout: Duration) -> Ended {
    let listener = TcpListener::bind("0.0.0.0:700").await?;
    let spec = spec(&POOLS, STEPS);
    let roster = Roster {
        address: "scheduler:700".into(),
        config: "abc".into(),
        pools: POOLS.clone(),
        credits: spec.plan.credits,
        resume: None,
        rendezvous: "rendezvous".into(),
        products: spec.state.products,
        queue: spec.max_unanswered(),
        timeout,
        lease: LEASE,
        cached: Default::default(),
        reading: Default::default(),
        returns: Some(ReconnectRegistry::default()),
    };
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    let members = gather(&accept, &roster).await?;
    let paths = members.iter().map(|(&actor, member)| (actor, member.edges.clone())).collect();
    let desk = JoinServer::new(roster, paths, &[], |_| 0);
    tokio::select! {
        result = conduct(members, spec) => result,
        () = desk.open(accept, |_| ()) => unreachable!("it never ends"),
    }
}

type Ended = Result<(usize, Result<Outcome, Failure>), Box<dyn std::error::Error>>;

async fn conduct(members: BTreeMap<ActorId, Member>, spec: CoordinatorSpec) -> Ended {
    let (inputs, input) = flume::bounded(100);
    let mut commands = BTreeMap::new();
    for (actor, member) in members {
        let terms = Terms { silence: Duration::from_secs(60), ..Terms::new(LEASE, false) };
        let link = remote_link(member, spec.max_unanswered(), terms, None, flume::bounded(0).0);
        commands.insert(actor, link.commands);
        let inputs = inputs.clone();
        tokio::task::spawn_local(async move {
            while let Ok(event) = link.events.recv_async().await {
                inputs.send_async(Input::Event(actor, event)).await.unwrap();
            }
            let _ = inputs.send_async(Input::Gone(actor, (link.end)())).await;
        });
    }
    let mut coordinator = Coordinator::new(spec);
    let mut num_steps = 0;
    loop {
        let mut outputs = coordinator.on(input.recv_async().await?);
        while !outputs.is_empty() {
            let mut next = Vec::new();
            for output in outputs {
                match output {
                    Output::Send(actor, command) => commands[&actor].send(command),
                    Output::Step(_) => num_steps += 1,
                    Output::Publish(draft) => next.extend(coordinator.on(Input::Published(draft.step, draft.to))),
                    Output::Finished(result) => return Ok((num_steps, result)),
                    _ => {}
                }
            }
            outputs = next;
        }
    }
}

fn simulation(seed: u64) -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(120))
        // Fine beside the latencies; each tick of each host takes time.
        .tick_duration(Duration::from_millis(4))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(300))
        .rng_seed(seed)
        .build()
}

const MEMBERS: [(&str, Role); 4] = [
    ("data", Role::Data),
    ("encoder-a", Role::Encoder),
    ("encoder-b", Role::Encoder),
    ("foundation", Role::Foundation),
];

#[test]
fn a_slow_network_changes_nothing() {
    for seed in 0..10 {
        let mut sim = simulation(seed);
        for (name, role) in MEMBERS {
            sim.client(name, member(role, "abc", Rc::default()));
        }
        sim.client("scheduler", async {
            // Members try again until somebody listens.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let (num_steps, result) = scheduler(Duration::from_secs(30)).await?;
            assert_eq!((num_steps as u64, result), (STEPS, Ok(Outcome::Completed)));
            Ok(())
        });
        sim.run().unwrap();
    }
}

#[test]
fn a_peer_that_dies_is_named_and_the_others_are_stopped() {
    for seed in 0..5 {
        let mut sim = simulation(seed);
        let done: Rc<Cell<u64>> = Rc::default();
        for (name, role) in MEMBERS {
            if name != "foundation" {
                sim.client(name, member(role, "abc", Rc::default()));
            }
        }
        let seen = done.clone();
        sim.host("foundation", move || member(Role::Foundation, "abc", seen.clone()));
        sim.client("scheduler", async {
            let (num_steps, result) = scheduler(Duration::from_secs(30)).await?;
            assert!((num_steps as u64) < STEPS);
            assert_eq!(result.unwrap_err().actor, ActorId::foundation(0));
            Ok(())
        });
        while done.get() < 2 {
            sim.step().unwrap();
        }
        sim.crash("foundation");
        sim.run().unwrap();
    }
}

#[test]
fn another_configuration_and_one_too_many_are_refused() {
    let mut sim = simulation(3);
    for (name, role) in MEMBERS {
        sim.client(name, member(role, "abc", Rc::default()));
    }
    for (name, role, config, reason) in [
        ("stranger", Role::Encoder, "xyz", "its configuration is not this run's"),
        ("fifth", Role::Scheduler, "abc", "this run has all its scheduler actors already"),
    ] {
        sim.client(name, async move {
            let error = member(role, config, Rc::default()).await.unwrap_err().to_string();
            // Whoever comes after the last member is told so.
            assert!(error.contains(reason) || error.contains("the run has begun"), "{error}");
            Ok(())
        });
    }
    sim.client("scheduler", async {
        let (_, result) = scheduler(Duration::from_secs(30)).await?;
        assert_eq!(result, Ok(Outcome::Completed));
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn who_is_missing_is_named() {
    let mut sim = simulation(4);
    sim.client("data", async {
        let error = member(Role::Data, "abc", Rc::default()).await.unwrap_err().to_string();
        assert!(error.contains("ended before the run began") || error.contains("connection"), "{error}");
        Ok(())
    });
    sim.client("operator", async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (mut sender, mut receiver) = link::<Up, Down>(TcpStream::connect("scheduler:700").await?);
        sender.send(&Up::Scale { pool: None, encoders: 3, is_forced: false }).await?;
        let Some(Down::Refused { reason }) = receiver.recv().await? else { panic!("it is answered") };
        assert_eq!(reason, "the run is just beginning; ask again");
        Ok(())
    });
    sim.client("scheduler", async {
        let error = scheduler(Duration::from_secs(9)).await.unwrap_err().to_string();
        let wanted = "encoder/0, encoder/1, foundation/0 did not join at scheduler:700 within 9 s";
        assert!(error.starts_with(wanted), "{error}");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn the_place_of_one_whose_connection_breaks_is_free_again() {
    let mut sim = simulation(5);
    sim.client("unlucky", async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut stream = TcpStream::connect("scheduler:700").await?;
        let hello = Up::Hello { config: "abc".into(), role: Role::Data, pool: PoolName::DATA, index: None };
        stream.write_all(&frame(&hello).unwrap()).await?;
        stream.write_all(&frame(&Up::Alive).unwrap()[..9]).await?;
        // It has a place when it is answered, and dies inside a message.
        stream.read_exact(&mut [0; 14]).await?;
        Ok(())
    });
    for (name, role) in MEMBERS {
        sim.client(name, async move {
            tokio::time::sleep(Duration::from_secs(4)).await;
            member(role, "abc", Rc::default()).await
        });
    }
    sim.client("scheduler", async {
        let (_, result) = scheduler(Duration::from_secs(30)).await?;
        assert_eq!(result, Ok(Outcome::Completed));
        Ok(())
    });
    sim.run().unwrap();
}

/// The partitions are both ways and one way, for longer than a connection is kept in silence and shorter than an actor is missed.
#[test]
fn partitions_heal_and_the_same_steps_go_on() {
    for (seed, who) in ["foundation", "encoder-a", "data", "encoder-b"].into_iter().cycle().take(12).enumerate() {
        let mut sim = simulation(seed as u64);
        let done: Rc<Cell<u64>> = Rc::default();
        for (name, role) in MEMBERS {
            sim.client(name, member(role, "abc", done.clone()));
        }
        let ended: Rc<Cell<bool>> = Rc::default();
        let seen = ended.clone();
        sim.client("scheduler", async move {
            let (num_steps, result) = scheduler(Duration::from_secs(30)).await?;
            assert_eq!((num_steps as u64, result), (STEPS, Ok(Outcome::Completed)));
            seen.set(true);
            Ok(())
        });
        while done.get() < 3 + seed as u64 % 5 {
            sim.step().unwrap();
        }
        match seed % 3 {
            0 => sim.partition("scheduler", who),
            1 => sim.partition_oneway("scheduler", who),
            _ => sim.partition_oneway(who, "scheduler"),
        }
        let since = sim.elapsed();
        while sim.elapsed() < since + Duration::from_secs(5) {
            sim.step().unwrap();
        }
        assert!(!ended.get(), "{who}: the run waits");
        sim.repair("scheduler", who);
        sim.repair_oneway("scheduler", who);
        sim.repair_oneway(who, "scheduler");
        sim.run().unwrap();
        assert!(ended.get());
    }
}
