//! The shell's acts on PostgreSQL.

use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{Ending, EngineStep, Job, LeaseStep, Register, Release, Source, rules};

use super::adversary::Moment;
use super::agent::{Running, Work};
use super::postgres::{Dir, Pg, Rec, State};
use super::world::{Event, World};

impl World {
    /// Carries out a step; true when another may follow at once.
    pub fn perform(&mut self, node: usize, step: EngineStep) -> bool {
        match step {
            EngineStep::Keep | EngineStep::Refuse(_) => false,
            EngineStep::Kill(why) => {
                self.note(|w| format!("KILL   {} {why}", w.nodes[node].instance));
                self.check_kill(node);
                self.start_kill(node);
                false
            }
            EngineStep::Stop(_) => {
                self.stop(node);
                false
            }
            EngineStep::HandOver(wish) => {
                if let Some(tenure) = self.nodes[node].agent.as_mut().and_then(|agent| agent.tenure.as_mut()) {
                    tenure.ending = Some(Ending { wish: Some(wish.clone()) });
                }
                if active(Mutation::ReleaseBeforeStop) {
                    self.release_early(node, wish);
                } else {
                    self.stop(node);
                }
                false
            }
            EngineStep::Bootstrap => self.begin(node, Job::Bootstrap, Work::Bootstrap, 600, 2_000),
            EngineStep::AdoptStaged(proof) => {
                let volume = &mut self.nodes[node].volume;
                if let Some((member, dir)) = volume.staged.take() {
                    volume.state = State {
                        member,
                        marker: true,
                        proof: Some(proof),
                        last_container: volume.state.last_container.take(),
                        promise: volume.state.promise.take(),
                        hold: volume.state.hold,
                        ..State::default()
                    };
                    volume.dir = Some(dir);
                }
                self.observe(node);
                true
            }
            EngineStep::DiscardStaged => {
                self.check_discard_staged(node);
                self.nodes[node].volume.staged = None;
                true
            }
            EngineStep::WriteProof(proof) => {
                self.nodes[node].volume.state.proof = Some(proof);
                true
            }
            EngineStep::Clone { source, member } => self.begin_clone(node, &source, member),
            EngineStep::Rewind(source) => self.begin_rewind(node, &source),
            EngineStep::StartPrimary => {
                let long = if self.nodes[node].volume.dir.as_ref().is_some_and(|dir| !dir.clean) { 3_000 } else { 400 };
                self.mark_started(node);
                self.begin(node, Job::StartPrimary, Work::StartPrimary, 150, long)
            }
            EngineStep::StartStandby(source) => {
                self.mark_started(node);
                if let Some(dir) = self.nodes[node].volume.dir.as_mut() {
                    dir.standby = true;
                }
                self.erase_proof(node, source.as_ref());
                self.begin(node, Job::StartStandby, Work::StartStandby(source), 100, 500)
            }
            EngineStep::Promote(timeline) => {
                let long = if self.rng.chance(20) { 2_500 } else { 120 };
                self.begin(node, Job::Promote, Work::Promote(timeline), 40, long)
            }
            EngineStep::Follow(source) => {
                self.erase_proof(node, source.as_ref());
                let stuck = if self.story.zombies { 15 } else { 5 };
                let long = if source.is_none() && self.rng.chance(stuck) { 5_000 } else { 120 };
                self.begin(node, Job::StartStandby, Work::Follow(source), 10, long)
            }
        }
    }

    fn erase_proof(&mut self, node: usize, source: Option<&Source>) {
        if source.is_some() && !active(Mutation::ProofKept) {
            self.nodes[node].volume.state.proof = None;
        }
    }

    /// From here on a crash leaves an end that is not known.
    fn mark_started(&mut self, node: usize) {
        if let Some(dir) = self.nodes[node].volume.dir.as_mut() {
            dir.clean = false;
        }
    }

    fn begin(&mut self, node: usize, job: Job, work: Work, from: u64, to: u64) -> bool {
        let id = self.id();
        self.note(|w| format!("job    {} {work:?}", w.nodes[node].instance));
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.job = Some(Running { id, job, work });
        }
        self.after(from, to, Event::JobDone { node, job: id });
        false
    }

    fn stop(&mut self, node: usize) {
        let ship = self.rng.chance(85);
        let Some(pg) = self.nodes[node].pg.as_mut() else { return };
        pg.stopping = true;
        pg.waiting.clear();
        let job = if pg.writable { Job::StopPrimary } else { Job::StopStandby };
        self.begin(node, job, Work::Stop { ship }, 60, 2_300);
    }

    /// The mistake of releasing before PostgreSQL has stopped.
    fn release_early(&mut self, node: usize, wish: String) {
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        let Some(seen) = agent.lease.as_ref().filter(|_| agent.asking.is_none()) else { return };
        let dir = self.nodes[node].volume.dir.clone().unwrap_or_default();
        let release = Some(Release { timeline: dir.timeline(), lsn: Some(dir.end()), wish: Some(wish) });
        let register = Register { release, ..seen.register.clone() };
        let step = LeaseStep::Release(Box::new(register));
        self.write_step(node, step);
    }

    /// The instance at this source, when its PostgreSQL is a primary that can be copied from.
    fn copy_source(&self, node: usize, source: &Source) -> Option<(usize, u64)> {
        let from = self.node_of(&source.instance)?;
        let pg = self.nodes[from].pg.as_ref().filter(|pg| pg.writable && !pg.killing && !pg.stopping)?;
        let open = self.reaches(node, from) && self.reaches(from, node) && self.nodes[from].frozen_until <= self.now;
        (from != node && open && self.nodes[from].volume.dir.is_some()).then_some((from, pg.run))
    }

    fn begin_clone(&mut self, node: usize, source: &Source, member: Option<String>) -> bool {
        let Some((mut from, mut run)) = self.copy_source(node, source) else { return false };
        if active(Mutation::ClonedFromLaggard) {
            let worst = (0..self.nodes.len())
                .filter(|other| *other != node && *other != from && self.nodes[*other].pg.is_some())
                .filter(|other| self.nodes[*other].volume.dir.is_some())
                .min_by_key(|other| self.nodes[*other].volume.dir.as_ref().map_or(0, |dir| dir.wal.len()));
            if let Some(worst) = worst {
                from = worst;
                run = self.pg_run(worst);
            }
        }
        let id = self.id();
        let member = member.unwrap_or_else(|| format!("{}-m{id}", self.nodes[node].instance));
        let kept = active(Mutation::MemberIdKept) || active(Mutation::ClonedFromLaggard);
        let member = if kept && !self.nodes[node].volume.state.member.is_empty() {
            self.nodes[node].volume.state.member.clone()
        } else {
            member
        };
        self.lose_marker(node);
        if active(Mutation::DiscardedBeforeClone) {
            let old = self.nodes[node].volume.dir.take();
            self.check_discard(node, old.as_ref(), 0);
        }
        self.begin(node, Job::Clone, Work::Clone { from, run, member }, 1_200, 5_000)
    }

    fn lose_marker(&mut self, node: usize) {
        let now = self.clock(node);
        let machine = &mut self.nodes[node];
        machine.volume.state.marker &= active(Mutation::MemberIdKept) || active(Mutation::ClonedFromLaggard);
        if let Some(agent) = machine.agent.as_mut() {
            agent.marker_gone = Some(now);
        }
    }

    fn begin_rewind(&mut self, node: usize, source: &Source) -> bool {
        let Some((from, run)) = self.copy_source(node, source) else { return false };
        let id = self.id();
        self.lose_marker(node);
        let instance = self.nodes[node].instance.clone();
        let state = &mut self.nodes[node].volume.state;
        state.proof = None;
        state.unfinished = true;
        if !active(Mutation::MemberIdKept) {
            state.member = format!("{instance}-m{id}");
        }
        self.begin(node, Job::Rewind, Work::Rewind { from, run }, 400, 3_400)
    }

    pub fn on_job_done(&mut self, node: usize, id: u64) {
        let tripped = self.nodes[node].tripped;
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(running) = agent.job.take_if(|job| job.id == id) else { return };
        if tripped && matches!(running.work, Work::StartPrimary | Work::Promote(_)) {
            // The killer goes on for as long as it is not armed again.
            self.pg_dies(node, false);
            self.observe(node);
            self.tick(node);
            return;
        }
        match running.work {
            Work::Bootstrap => {
                let member = agent.me.member_for(&agent.me.instance);
                let system = format!("sys{id}");
                let dir = Dir {
                    system,
                    wal: vec![Rec { timeline: 1, id: 0 }; 3],
                    standby: false,
                    clean: true,
                    consistent_at: (1, 0),
                };
                self.nodes[node].volume.staged = Some((member, dir));
            }
            Work::Clone { from, run, member } => self.cloned(node, from, run, member),
            Work::StartPrimary => self.started_primary(node),
            Work::StartStandby(source) => self.started_standby(node, source),
            Work::Promote(timeline) => self.promoted(node, timeline),
            Work::Rewind { from, run } => self.rewound(node, from, run),
            Work::Stop { ship } => self.stopped(node, ship),
            Work::Follow(source) => {
                self.drop_receiver(node);
                if let Some(pg) = self.nodes[node].pg.as_mut() {
                    pg.source = source;
                }
            }
        }
        self.observe(node);
        self.tick(node);
    }

    fn started_primary(&mut self, node: usize) {
        let run = self.id();
        let mut pg = Pg::new(run);
        pg.writable = true;
        self.nodes[node].pg = Some(pg);
        self.opened(node);
    }

    fn promoted(&mut self, node: usize, timeline: u32) {
        if self.nodes[node].pg.is_none() {
            return;
        }
        self.drop_receiver(node);
        self.end_recovery(node, timeline);
        let run = self.id();
        if let Some(pg) = self.nodes[node].pg.as_mut() {
            pg.writable = true;
            pg.source = None;
            pg.run = run;
            pg.replaying_until = 0;
        }
        self.opened(node);
    }

    fn end_recovery(&mut self, node: usize, timeline: u32) {
        if self.nodes[node].volume.dir.as_ref().is_some_and(|dir| !dir.consistent()) {
            let name = self.nodes[node].instance.clone();
            self.violate("S4", format!("{name} is promoted although its copy is not consistent"));
        }
        if let Some(dir) = self.nodes[node].volume.dir.as_mut() {
            dir.standby = false;
            if dir.timeline() != timeline {
                dir.wal.push(Rec { timeline, id: 0 });
            }
        }
    }

    /// PostgreSQL is writable from now on; the sync setting stood before its first connection.
    fn opened(&mut self, node: usize) {
        let joined = self.joined(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        agent.confirmed = None;
        agent.proof_of = super::confirm::Confirmation::default();
        let term = agent.tenure.as_ref().map_or(0, |tenure| tenure.term);
        if let Some(tenure) = &mut agent.tenure {
            tenure.served = true;
        }
        let rule = agent.lease.as_ref().and_then(|seen| seen.register.rule().cloned());
        if let Some(pg) = self.nodes[node].pg.as_mut() {
            pg.term = term;
        }
        if let Some(rule) = rule {
            self.set_sync(node, rules::setting(&rule, &joined), true);
        }
        self.note(|w| format!("OPEN   {} writable, term {term}", w.nodes[node].instance));
        self.check_opened(node, term);
        self.react(Moment::Opened, node);
        if !self.nodes[node].write_pending {
            self.nodes[node].write_pending = true;
            self.after(5, 200, Event::Write { node });
        }
    }

    fn started_standby(&mut self, node: usize, source: Option<Source>) {
        let run = self.id();
        let mut pg = Pg::new(run);
        pg.source = source;
        // It replays what it has, and reports less meanwhile.
        let long = if self.rng.chance(45) { 6_000 } else { 300 };
        pg.replaying_until = self.now + self.rng.range(20, long);
        let len = self.nodes[node].volume.dir.as_ref().map_or(0, |dir| dir.wal.len());
        pg.shown = len - self.rng.index(len / 2 + 1);
        self.nodes[node].pg = Some(pg);
        self.after(20, 400, Event::Connect { node, run });
    }

    fn cloned(&mut self, node: usize, from: usize, run: u64, member: String) {
        let open = self.reaches(node, from) && self.reaches(from, node) && self.pg_run(from) == run;
        let Some(source) = self.nodes[from].volume.dir.clone().filter(|_| open) else { return };
        let old = self.nodes[node].volume.dir.take();
        let proof = self.nodes[from].volume.state.proof.clone().filter(|_| active(Mutation::ProofCloned));
        let common = old.as_ref().map_or(0, |old| old.common(&source));
        let volume = &mut self.nodes[node].volume;
        volume.dir = Some(Dir { standby: true, clean: false, ..source });
        volume.state.marker |= active(Mutation::ClonedFromLaggard);
        volume.state.member = member;
        volume.state.proof = proof;
        volume.state.hopeless = false;
        self.nodes[node].cannot_follow = false;
        self.nodes[node].kept_from = 0;
        self.note(|w| format!("cloned {} as {}", w.nodes[node].instance, w.nodes[node].volume.state.member));
        self.check_discard(node, old.as_ref(), common);
    }

    fn rewound(&mut self, node: usize, from: usize, run: u64) {
        let open = self.reaches(node, from) && self.reaches(from, node) && self.pg_run(from) == run;
        let refused = self.rng.chance(15);
        let broken = self.rng.chance(50);
        let source = self.nodes[from].volume.dir.clone();
        let again = self.nodes[node].volume.dir.as_ref().is_some_and(|dir| !dir.consistent());
        let state = &mut self.nodes[node].volume.state;
        state.unfinished = false;
        let (Some(source), false) = (source.filter(|_| open), refused || again) else {
            state.hopeless = refused || again || broken;
            return;
        };
        let Some(old) = self.nodes[node].volume.dir.take() else { return };
        self.react(Moment::Rewound, node);
        let common = old.common(&source);
        let end = source.wal.len() - self.rng.index((source.wal.len() - common).min(4) + 1);
        let wal = source.wal[..end].to_vec();
        self.nodes[node].volume.dir = Some(Dir {
            system: old.system.clone(),
            wal,
            standby: true,
            clean: false,
            consistent_at: (source.timeline(), source.wal.len()),
        });
        // What it has from the fork on came with the rewind; else a shorter history would miss WAL that never was (seed 20041282).
        self.nodes[node].kept_from = self.nodes[node].kept_from.min(common);
        self.note(|w| format!("rewind {} from {} to {common}, has {end}", w.nodes[node].instance, old.wal.len()));
        self.check_discard(node, Some(&old), common);
    }

    fn stopped(&mut self, node: usize, ship: bool) {
        if self.nodes[node].pg.is_none() {
            return;
        }
        let writable = self.nodes[node].pg.as_ref().is_some_and(|pg| pg.writable);
        if writable {
            self.write_record(node);
            let Some(dir) = self.nodes[node].volume.dir.clone() else { return };
            for conn in self.walsenders(node) {
                let standby = self.conns[conn].standby;
                let whole = self.nodes[standby].pg.as_ref().is_some_and(|pg| pg.receiver == Some(conn))
                    && self.reaches(node, standby)
                    && self.nodes[standby].frozen_until <= self.now
                    && !self.conns[conn].diverged;
                if whole && ship {
                    if let Some(theirs) = self.nodes[standby].volume.dir.as_mut() {
                        theirs.wal.clone_from(&dir.wal);
                    }
                    if let Some(pg) = self.nodes[standby].pg.as_mut() {
                        pg.unflushed.clear();
                        pg.receiver = None;
                    }
                    self.conns[conn].receiving = false;
                }
            }
        }
        self.drop_receiver(node);
        self.nodes[node].pg = None;
        if let Some(dir) = self.nodes[node].volume.dir.as_mut() {
            dir.clean = true;
        }
        self.note(|w| format!("stop   {} clean", w.nodes[node].instance));
    }

    /// The complete stop: it takes up to its budget, and backends may go on meanwhile.
    pub fn start_kill(&mut self, node: usize) {
        if self.nodes[node].unkillable_until > self.now {
            return;
        }
        let promoted = self.rng.chance(40);
        let most = if self.rng.chance(10) { 1_900 } else { 150 };
        let job = self.nodes[node].agent.as_mut().and_then(|agent| agent.job.take());
        if let Some(Running { work: Work::Promote(timeline), .. }) = &job
            && promoted
        {
            let timeline = *timeline;
            self.end_recovery(node, timeline);
        }
        let survives = active(Mutation::BackendsSurvive);
        let Some(pg) = self.nodes[node].pg.as_mut() else { return };
        pg.killing = true;
        let run = pg.run;
        if survives && let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.believes_stopped = true;
        }
        let (from, to) = if survives { (6_000, 16_000) } else { (5, most) };
        self.after(from, to, Event::Killed { node, run });
    }

    pub fn on_killed(&mut self, node: usize, run: u64) {
        if self.pg_run(node) != run {
            return;
        }
        self.pg_dies(node, false);
        self.check_pg_died(node);
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.believes_stopped = false;
        }
        self.observe(node);
        if self.nodes[node].agent_frozen_until <= self.now {
            self.tick(node);
        }
    }

    /// A job whose PostgreSQL died ends with it.
    pub fn check_pg_died(&mut self, node: usize) {
        let gone = self.nodes[node].pg.is_none();
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let needs = agent
            .job
            .as_ref()
            .is_some_and(|job| matches!(job.work, Work::Promote(_) | Work::Stop { .. } | Work::Follow(_)));
        if gone && needs {
            agent.job = None;
        }
    }
}
