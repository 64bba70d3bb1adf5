//! Random faults, one or two at a time, for as long as is wanted.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::{TAKEN, say};
use crate::harness::election::{Fault, Load, World};
use crate::harness::{Case, Result, Suite, alone_within, variable};

#[tokio::test]
async fn random_faults_for_some_minutes() -> Result {
    let minutes = variable("MINUTES").and_then(|text| text.parse().ok()).unwrap_or(5);
    let seed = variable("SEED").and_then(|text| text.parse().ok()).unwrap_or_else(rand::random::<u32>);
    let time = Duration::from_secs(minutes * 60);
    let outcome =
        alone_within(time + Duration::from_secs(15 * 60), "chaos", |suite, case| chaos(suite, case, time, seed)).await;
    // The moments of the faults are the machine's, but which they are follows from the seed.
    outcome.map_err(|error| format!("make chaos MINUTES={minutes} SEED={seed}: {error}").into())
}

/// What happens in one round.
#[derive(Debug)]
enum Blow {
    /// To the primary, or a replica.
    One(Fault, usize),
    /// A second one, so much later; the first may not be over.
    Two((Fault, usize), Duration, (Fault, usize)),
    /// The API server stands still for so long, while something happens to somebody.
    ApiServer(Duration, Option<(Fault, usize)>),
    /// Somebody asks for another primary.
    Switchover,
    /// Nobody hears somebody, or somebody hears nobody.
    HalfCut(usize, bool),
}

fn blow(random: &mut StdRng) -> Blow {
    // The primary as often as both others together.
    let one = |random: &mut StdRng| {
        let fault = Fault::ALL.choose(random).copied().unwrap_or(Fault::PodDeleted);
        (fault, [0, 0, 1, 2].choose(random).copied().unwrap_or(0))
    };
    match random.random_range(0..10) {
        0..=3 => {
            let (fault, whom) = one(random);
            Blow::One(fault, whom)
        }
        4..=6 => Blow::Two(one(random), Duration::from_millis(random.random_range(0..20_000)), one(random)),
        7 => Blow::ApiServer(
            Duration::from_secs(random.random_range(5..40)),
            random.random_bool(0.5).then(|| one(random)),
        ),
        8 => Blow::Switchover,
        _ => Blow::HalfCut(random.random_range(0..3), random.random()),
    }
}

async fn chaos(suite: &'static Suite, case: Case, time: Duration, seed: u32) -> Result {
    say(&format!("random faults for {:.0} minutes: SEED={seed}", time.as_secs_f64() / 60.0));
    let mut random = StdRng::seed_from_u64(seed.into());
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        rounds += 1;
        let blow = blow(&mut random);
        let rest = Duration::from_millis(random.random_range(0..25_000));
        let (began, term) = (Instant::now(), world.term().await?);
        say(&format!(
            "round {rounds}, term {term}, primary {}: {blow:?}, and {rest:.1?} of rest",
            world.primary().await?
        ));
        happens(&world, &blow, rest).await.map_err(|error| format!("round {rounds}, {blow:?}: {error}"))?;
        let what = |error| format!("after round {rounds}, {blow:?}: {error}");
        world.writes_on(2 * TAKEN).await.map_err(what)?;
        world.one_primary_with_every_row().await.map_err(what)?;
        let healed = world.converged().await.map_err(what)?;
        let cost = world.cost_since(began, world.term().await? - term);
        world.forget_restarts().await.map_err(what)?;
        say(&format!(
            "  gap {:.1?}, {} failed, {} takes, all stream after {healed:.1?}",
            cost.gap, cost.failures, cost.takes
        ));
    }
    say(&format!("{rounds} rounds, {} rows acknowledged, none lost", world.ledger().count()));
    Ok(())
}

/// Strikes, rests, and puts everything back.
async fn happens(world: &World, blow: &Blow, rest: Duration) -> Result {
    let (primary, first, second) = world.roles().await?;
    let whom = |index: usize| [&primary, &first, &second].get(index).copied().unwrap_or(&primary).as_str();
    match blow {
        Blow::One(fault, index) => {
            fault.strike(world, whom(*index)).await?;
            tokio::time::sleep(rest).await;
            fault.undo(world, whom(*index)).await
        }
        Blow::Two((fault, index), pause, (next, other)) => {
            fault.strike(world, whom(*index)).await?;
            tokio::time::sleep(*pause).await;
            // Whom the first one took away cannot be struck again.
            let again = next.strike(world, whom(*other)).await;
            tokio::time::sleep(rest).await;
            let mut all = vec![(*fault, *index)];
            if again.is_ok() && !(fault == next && index == other) {
                all.push((*next, *other));
            }
            // A node that is cut off does not become Ready when its power is back.
            all.sort_by_key(|(fault, _)| *fault != Fault::Partition);
            for (fault, index) in all {
                fault.undo(world, whom(index)).await?;
            }
            Ok(())
        }
        Blow::ApiServer(time, fault) => {
            let api = world.suite.cluster().api_server();
            let mut struck = None;
            if let Some((fault, index)) = fault.filter(|(fault, _)| !fault.needs_operator()) {
                // Where everybody is has to be known before.
                let (strike, stop) = tokio::join!(fault.strike(world, whom(index)), async {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    api.stop().await
                });
                stop?;
                strike?;
                struck = Some((fault, index));
            } else {
                api.stop().await?;
            }
            tokio::time::sleep(*time).await;
            api.continue_().await?;
            tokio::time::sleep(rest).await;
            match struck {
                Some((fault, index)) => fault.undo(world, whom(index)).await,
                None => Ok(()),
            }
        }
        Blow::Switchover => {
            world.ask_for(&first).await?;
            tokio::time::sleep(rest).await;
            Ok(())
        }
        Blow::HalfCut(index, hears) => {
            let node = world.node_of(whom(*index))?;
            let network = world.suite.cluster().network(node.number());
            if *hears {
                network.cut_from().await?
            } else {
                network.cut_to().await?
            }
            tokio::time::sleep(rest).await;
            Ok(network.heal().await?)
        }
    }
}
