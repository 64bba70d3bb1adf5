//! Many replicas against one Lease, with messages that are late or lost, clocks that differ, and processes that freeze:
//! never do two act at once.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::state::{Machine, Moment, Record, Seen, Timings, Verdict};

/// The API server's side: one object, conditional writes.
#[derive(Debug, Default)]
struct Server {
    version: u64,
    lease: Option<Record>,
}

impl Server {
    fn read(&self) -> Seen {
        self.lease.clone().map_or(Seen::Absent, Seen::Record)
    }
    /// What the layer lets through: a create, or a patch conditional on uid and version.
    fn write(&mut self, write: &Write) -> Option<Record> {
        let fits = match (&self.lease, &write.on) {
            (None, None) => true,
            (Some(now), Some(read)) => now.version == read.version && now.uid == read.uid,
            _ => false,
        };
        if !fits {
            return None;
        }
        self.version += 1;
        let version = self.version.to_string();
        let uid = self.lease.as_ref().map_or_else(|| version.clone(), |lease| lease.uid.clone());
        self.lease = Some(Record { uid, version, holder: write.holder.clone(), duration: Some(write.duration) });
        self.lease.clone()
    }
}

#[derive(Debug, Clone)]
struct Write {
    on: Option<Record>,
    holder: String,
    duration: Duration,
}

/// How far the one attempt of a replica is. The crate does one after the other.
#[derive(Debug, Clone)]
enum Step {
    Idle,
    /// The GET is on its way to the server.
    Asking(Moment),
    /// Its answer is on the way back.
    Hearing(Moment, Seen),
    /// The write is on its way to the server.
    Writing(Moment, Write),
    /// Its answer is on the way back; None: a conflict.
    Answered(Moment, Option<Record>),
}

struct Replica {
    machine: Machine,
    step: Step,
    /// Its boot was so long before the others'.
    offset: Duration,
    /// Writes whose sender gave up: they may still arrive.
    strays: Vec<Write>,
}

impl Replica {
    fn now(&self, time: Duration) -> Moment {
        Moment::since_boot(self.offset + time)
    }

    /// Goes one step on; what takes how long is up to the script.
    fn advance(&mut self, time: Duration, server: &mut Server) {
        let now = self.now(time);
        self.step = match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle if now < self.machine.next_attempt() => Step::Idle,
            Step::Idle => {
                self.machine.begin(now);
                Step::Asking(now)
            }
            Step::Asking(began) => Step::Hearing(began, server.read()),
            Step::Hearing(began, seen) => {
                self.machine.read(now, seen);
                let on = self.machine.record().cloned();
                let mine = |holder: &str, duration| Write { on, holder: holder.to_owned(), duration };
                match self.machine.verdict(now) {
                    Verdict::Create | Verdict::Take | Verdict::Renew => {
                        Step::Writing(began, mine(self.machine.me(), self.machine.timings().lease()))
                    }
                    Verdict::Release => Step::Writing(began, mine("", Duration::from_secs(1))),
                    Verdict::Wait(_) => Step::Idle,
                }
            }
            Step::Writing(began, write) => Step::Answered(began, server.write(&write)),
            Step::Answered(began, Some(record)) => {
                self.machine.written(began, now, record);
                Step::Idle
            }
            Step::Answered(_, None) => {
                self.machine.failed();
                Step::Idle
            }
        };
    }

    /// The attempt times out. What was sent may still arrive.
    fn give_up(&mut self) {
        if let Step::Writing(_, write) = std::mem::replace(&mut self.step, Step::Idle) {
            self.strays.push(write);
        }
        self.machine.failed();
    }
}

#[derive(Debug, Clone)]
enum Event {
    Advance(usize),
    GiveUp(usize),
    Stray(usize),
    Hint(usize),
    Stop(usize),
    /// The process is killed and started again, under a new name.
    Restart(usize),
    Pass(u64),
}

fn event(replicas: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (0..replicas).prop_map(Event::Advance),
        2 => (0..replicas).prop_map(Event::GiveUp),
        2 => (0..replicas).prop_map(Event::Stray),
        2 => (0..replicas).prop_map(Event::Hint),
        1 => (0..replicas).prop_map(Event::Stop),
        1 => (0..replicas).prop_map(Event::Restart),
        8 => (1_u64..900).prop_map(Event::Pass),
        2 => (900_u64..20_000).prop_map(Event::Pass),
    ]
}

fn run(offsets: &[u64], events: &[Event]) -> Result<usize, TestCaseError> {
    let mut server = Server::default();
    let mut started = 0;
    let mut start = |offset: u64| {
        started += 1;
        Replica {
            machine: Machine::new(format!("r{started}"), Timings::default()),
            step: Step::Idle,
            offset: Duration::from_secs(offset),
            strays: Vec::new(),
        }
    };
    let mut replicas: Vec<Replica> = offsets.iter().map(|offset| start(*offset)).collect();
    let mut time = Duration::ZERO;
    let mut reigns = 0;
    let mut before = None;
    for event in events {
        match *event {
            Event::Advance(i) => replicas[i].advance(time, &mut server),
            Event::GiveUp(i) => replicas[i].give_up(),
            Event::Stray(i) => {
                if let Some(write) = replicas[i].strays.pop() {
                    server.write(&write);
                }
            }
            Event::Hint(i) => replicas[i].machine.hint(),
            Event::Stop(i) => replicas[i].machine.stop(),
            Event::Restart(i) => replicas[i] = start(offsets[i]),
            Event::Pass(millis) => time += Duration::from_millis(millis),
        }
        let acting: Vec<&str> =
            replicas.iter().filter(|r| r.machine.leading(r.now(time))).map(|r| r.machine.me()).collect();
        prop_assert!(acting.len() <= 1, "{acting:?} act at the same time");
        if let Some(acting) = acting.first().map(|name| (*name).to_owned())
            && before.as_ref() != Some(&acting)
        {
            reigns += 1;
            before = Some(acting);
        }
    }
    Ok(reigns)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn never_do_two_replicas_act_at_once(
        offsets in vec(0_u64..1_000_000, 3),
        events in vec(event(3), 1..400),
    ) {
        run(&offsets, &events)?;
    }

    #[test]
    fn a_machine_answers_to_anything(
        steps in vec((0_u64..100, 0_u8..6, 0_u64..4, 0_usize..3), 0..60),
    ) {
        let mut machine = Machine::new("me".into(), Timings::default());
        for (second, what, version, who) in steps {
            let now = Moment::since_boot(Duration::from_secs(second));
            let holder = ["", "me", "other"][who].to_owned();
            // One version has one content.
            let record = Record { uid: "u".into(), version: format!("{version}{holder}"), holder, duration: None };
            match what {
                0 => machine.read(now, Seen::Absent),
                1 => machine.read(now, Seen::Record(record)),
                2 => machine.begin(now),
                3 => machine.written(now, now, record),
                4 => machine.failed(),
                _ => machine.lapse(),
            }
            let verdict = machine.verdict(now);
            if let Verdict::Wait(Some(until)) = verdict {
                prop_assert!(until > now, "a wait that is over is no wait");
            }
            if machine.leading(now) {
                prop_assert_eq!(machine.holder(), Some("me"));
            }
        }
    }
}

/// The property above would hold for replicas that never act.
#[test]
fn in_a_quiet_world_one_leads_and_a_stop_hands_over() {
    let advance = |i: usize| (0..6).map(move |_| Event::Advance(i));
    let mut events = Vec::new();
    for _ in 0..10 {
        events.extend((0..3).flat_map(advance));
        events.push(Event::Pass(2_000));
    }
    assert_eq!(run(&[5, 900, 77], &events).unwrap(), 1);
    events.push(Event::Stop(0));
    events.extend(advance(0));
    for _ in 0..10 {
        events.extend((1..3).flat_map(advance));
        events.push(Event::Pass(2_000));
    }
    assert_eq!(run(&[5, 900, 77], &events).unwrap(), 2);
    events.push(Event::Restart(1));
    for _ in 0..10 {
        events.extend((1..3).flat_map(advance));
        events.push(Event::Pass(2_000));
    }
    assert_eq!(run(&[5, 900, 77], &events).unwrap(), 3, "the lease of a killed holder runs out");
}
