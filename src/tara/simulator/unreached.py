"""What no seed of a campaign reaches, and why: `tara sim coverage` names the lines that have no explanation here."""

#: Reasons that hold in several places.
_DEFECT = "only a defect of ours comes here: an invariant of the node, checked in every run"
_STORE_DEFECT = "only a defect of ours comes here: `store` says in every run that no store gives up"
_OTHER_VERSION = "files of another version: there is one, and golden files of it in the tests"
_STATUS = "for `tara status` and metrics, which no run asks for"
_BARE = "for hosts without frames (streaming, the benchmark, tests); a site has its own"
_DIVERGED = (
    "a replica that has diverged: applications that are simulated are deterministic; "
    "`tests/storage/test_doubted.py`, `tests/protocol/test_coming_back.py`"
)
_GONE = "files that go while they are read: nobody writes meanwhile in a run; `tests/storage/test_rebuild.py`"
_GAP = (
    "a second gap, or one that ends otherwise than by being filled: `log_gap` makes one at a time; "
    "`tests/storage/test_gaps.py`"
)

#: By file below `tara`: places, and why no seed gets there. What is rare, some campaigns reach.
UNREACHED: dict[str, dict[str, str]] = {
    "apps/coordination/gateway/arrivals.py": {
        "Arrivals.crowded: if len(": (
            "256 connections of one address that have no session: more than a run has; "
            "`tests/apps/coordination/test_strangers.py`"
        ),
    },
    "apps/coordination/gateway/connection.py": {
        "Connection.stalls: if self.out": (
            "who does not fetch is closed at the harder bound first, as long as front ends have little room"
        ),
    },
    "apps/coordination/gateway/four_letter_words.py": {
        "allowed: if unknown": "options are checked before a cluster starts",
        "_names": "options are checked before a cluster starts",
    },
    "apps/coordination/gateway/front_end.py": {
        "FrontEnd.fail: if not isinstance": (
            "an error that should not be: `gateway` says in every run that there is none"
        ),
        "FrontEnd.drop: if connection.closed": (
            "the listener's, whose sockets may fail when a connection is closed already"
        ),
        "FrontEnd.calm": "the listener's: whether it has to ask for each connection",
        "FrontEnd._go_on: if connection.task is None": "a task that is over before its turn; rare",
        "FrontEnd._go_on: if connection.clogged": (
            "simulated clients that set thousands of watches fetch their answers"
        ),
        "FrontEnd._on_written: if result.status": (
            "the session of the front end may write: a write fails only if the service itself does"
        ),
        "FrontEnd._resume: if self.out_of_time": "virtual time hardly passes within a turn, and then elsewhere",
        "FrontEnd._resume_one: except Exception": (
            "only for strangers whose later request is malformed, and waited; rare"
        ),
        "FrontEnd._drop_sessionless: if now_s - connection.opened_s": (
            "ten seconds and more without a session are longer than most runs"
        ),
    },
    "apps/coordination/gateway/pressure.py": {
        "Pressure.weigh: if connection.closed": (
            "the listener's, which tells of what was sent also when it has closed a connection"
        ),
    },
    "apps/coordination/gateway/sessions.py": {
        "Sessions._on_joined: if result.status": "opening a session fails only if the service itself does",
    },
    "apps/coordination/gateway/uploads.py": {
        "Uploads.expect: if len(self._waiting)": "256 long requests at once: more clients than a run has",
    },
    "apps/coordination/gateway/watches.py": {
        "Watches.add: if self._count >=": "200,000 watches; the bound of one connection is reached",
        "Watches.remove: if not self.has": (
            "clients remove watches that they have; whether they have one is asked before"
        ),
    },
    "client/conversation.py": {
        "Conversation.fail": "how a client's thread ends when it is closed or fails; simulated ones are abandoned",
    },
    "client/reads.py": {
        "Reads.due: if self.bytes_max": "questions of the simulated applications are short",
        "Reads._has_room: if not self.long_may_go": "questions of the simulated applications are short",
        "Reads._expired: if now_s >= read.deadline_s": (
            "a read that is open when its time is up has mostly been ordered by then; rare"
        ),
        "Reads._expired: if read.stale": "the same for stale ones; rare",
        "Reads.hear: elif status != t.OVERLOADED": (
            "a question that the simulated applications fail at is a stranger's"
        ),
        "Reads.wait_s: if self._refused": (
            "simulated clients look around every 10 ms in any case; `sleeps` checks that they need not"
        ),
    },
    "client/session.py": {
        "Session._expire: call.finish(Overloaded": (
            "sessions are refused to strangers only: clients of a run need fewer than there may be"
        ),
        "Session.hear: elif result.number in self._openings and result.status == t.FORBIDDEN": (
            "each client has a secret of its own, and its names are its own"
        ),
        "Session.hear: elif result.number in self._openings and result.status in": (
            "sessions are refused to strangers only: clients of a run need fewer than there may be"
        ),
        "Session.hear: if result.status == t.FORBIDDEN": (
            "what strangers are answered goes to strangers; `owners` checks that"
        ),
        "Session._fill: if self._name": (
            "a command that is too long in a session with a name: batch writers have none"
        ),
        "Session.fail": "how a client's thread ends when it is closed or fails; simulated ones are abandoned",
        "Session._forbid": ("each client has a secret of its own, and sessions are not mixed up; `owners` checks that"),
    },
    "host/admission.py": {
        "Admission.refusal: if check is None": (
            "of what nodes say to each other, every kind is in the table, which a test compares with the graph"
        ),
        "Admission.open: if not isinstance": (
            "votes that are forged go to executors only in `garbage` of one kind in 24; rare"
        ),
        "Admission.open: if (commit.partition": "likewise",
        "Admission.open: if not self._commit": "likewise",
    },
    "host/bare_site.py": {
        "BareSite._send": _BARE,
        "BareSite._answer": _BARE,
        "BareSite.leave": _BARE,
        "BareSite.refuse": _BARE,
        "BareSite.open_vote": _BARE,
    },
    "host/client_desk.py": {
        "ClientDesk.receive: if self._is_here(self._sources[0])": (
            "a front end and its request source are in one container; the source is missing when it was "
            "stopped, and then mostly nobody reads"
        ),
        "ClientDesk._tell_front_ends: if len(self._told)": "100,000 connections",
        "ClientDesk._submit: if self._is_here(number)": (
            "the source is missing when it was stopped (`broken_node`); rare"
        ),
    },
    "host/client_wire.py": {
        "_encode_long_reply: for portion in answers[1:]": (
            "answers of several megabytes in one reply: values in a run are shorter; `tests/host/test_wire.py`"
        ),
        "_in_portions: portions": "likewise",
        "_in_portions: size = 0": "likewise",
        "_in_portions: for answer in answers": "likewise",
        "_in_portions: return portions": "likewise",
        "decode_reply: except t.DECODE_ERRORS": "no front end lies to its clients",
    },
    "host/executor_condition.py": {
        "described: if halted.checkpoint": (
            "a base that an application cannot restore: the simulated ones restore what they have written"
        ),
    },
    "host/fragments.py": {
        "Assembly.add: while self.kept_bytes": (
            "unfinished tuples of all peers together: bursts in a run are shorter; `tests/host/test_fragments.py`"
        ),
    },
    "host/gateway_session.py": {
        "GatewaySession.pump: if self._in_flight_bytes": "8 MiB of writes on their way from one front end",
        "GatewaySession.hear: if result.status == t.EXPIRED": (
            "the session of a gateway lives for long, and a run has no stall of one of them for so long"
        ),
        "GatewaySession.hear: self.reset()": "likewise",
        "GatewaySession.hear: return None": "likewise",
    },
    "host/latency.py": {
        "Histogram.report": _STATUS,
        "LatencySampler._begin: if len(self._open)": "more sessions that are timed at once than a run has",
    },
    "host/nodes.py": {
        "Nodes._process: except MalformedTuple": (
            "votes that are forged go to executors only in `garbage` of one kind in 24; rare"
        ),
        "Nodes._process: if not node.runs_application": (
            "memory runs out in applications only; elsewhere it ends the process"
        ),
    },
    "host/open_reads.py": {
        "OpenReads.refuse": "the source is missing when it was stopped, and then mostly nobody reads",
    },
    "host/outgoing.py": {
        "Outgoing.take: if not self.is_due": (
            "asked again for a link that has nothing: callers ask `is_due` first, but for one"
        ),
        "Outgoing.heard.is_needed: return True": "what waits behind a full link and has no slots; rare",
    },
    "host/peers.py": {
        "Peers.lives": _STATUS,
        "Peers._hear_fragment: if refusal is not None": "fragments that are forged are refused by the assembly",
    },
    "host/site.py": {
        "Site.lives": _STATUS,
        "Site.refuse": "votes that are forged go to executors only in `garbage` of one kind in 24; rare",
    },
    "protocol/acceptor.py": {
        "Acceptor.promise: if view <= self.view": _DEFECT,
        "Acceptor.vote: if not self.started": _DEFECT,
        "Acceptor.replay: if journal and": "what storage gives it begins with a head: damage shows there",
        "Acceptor.replay: elif entry != self.resumed()": (
            "two heads that differ: damage shows before, by numbers and checksums"
        ),
        "Acceptor._bridge: holes.append": ("a slot that was accepted again since in the middle of what was lost; rare"),
    },
    "protocol/base_taker.py": {
        "BaseTaker.take_ordered: number": (
            "a log that cannot become durable without a base: no gap is left that nobody can fill; "
            "`tests/storage/test_gaps.py`"
        ),
        "BaseTaker.take_ordered: if self._keeps_bases": "likewise",
        "BaseTaker.order: if self._capture": "a base that is ordered while a later one is drawn; rare",
    },
    "protocol/depth.py": {
        "depth: raise TaraError": "an interpreter that does not tell: it is refused at the first start",
    },
    "protocol/execution.py": {
        "Execution.replay: if first > self.next": _DEFECT,
        "Execution.state": "the whole of it at once: for the streaming runtime; executors capture it",
        "Execution.capture_digest: if not self.application.concurrent_snapshot": (
            "the simulated applications have states that can be drawn later"
        ),
    },
    "protocol/graph.py": {
        "Graph.__init__: if f < 0": "a configuration that is refused before anything starts",
        "Graph.__init__: if partitions < 1": "a configuration that is refused before anything starts",
        "Graph.commit_receivers: if proposer is None": "view 0 has no proposer, so nobody votes there",
        "Graph.label: if number < 0": "for the tables and pictures of the docs",
    },
    "protocol/journal.py": {
        "pack_head: if len(body)": _DEFECT,
        "read_head: if old :=": _OTHER_VERSION,
        "read_head: if version !=": _OTHER_VERSION,
        "read_head: except msgspec.DecodeError": _OTHER_VERSION,
        "_read_record: except t.DECODE_ERRORS": (
            "behind a checksum that is right: files of another version: there is one, and golden files of it in"
            " the tests"
        ),
        "_unpack_marker: if version": _OTHER_VERSION,
        "_unpack_marker: except (IndexError": _OTHER_VERSION,
        "_Assembly.run: self._gap(None)": (
            "a last segment that is torn in its head, and an end marker that does not tell: two damages at once"
        ),
        "_Assembly._arrange: if wanted in place": (
            "a segment under two names: `swap` exchanges them, nothing copies one"
        ),
        "_Assembly._arrange: if newest > 0": (
            "a process that ended in the very begin of a segment, and lost the marker, too"
        ),
        "_Assembly._is_begun: if self._marker is None": "likewise",
        "_Assembly._take: if self._pending is not None and": (
            "an end marker that is older than its journal within one start of the machine: a stale sector of "
            "that file only; rare"
        ),
        "_Assembly._take: if self._last is not None and record": (
            "a record that is there twice: a misdirected write of just that length; rare"
        ),
        "_Assembly._take: if found.torn and": (
            "a segment that ends at a record's boundary before the next one begins; rare"
        ),
        "_Assembly._state: for number in self._open": (
            "a journal whose promises are unknown, of several committers that were being restored; rare"
        ),
    },
    "protocol/limits.py": {
        "_require: if not condition": "a configuration that is refused before anything starts",
    },
    "protocol/node.py": {
        "Node.needs_commit": "executors have their own, and nobody else gets votes",
        "Node.replica": "asked of executors only",
        "Node._check_edge: if receivers.stage": _DEFECT,
    },
    "protocol/nodes/executor.py": {
        "Executor.execution": "for hosts without a store, and for tests",
        "Executor._execute: if self.bases.is_ordered and": (
            "a base that is ordered while the executor waits for its disk; rare"
        ),
        "Executor.read: if self.halted is not None": (
            "front ends refuse reads while their replica has halted; one that was on its way; rare"
        ),
        "Executor.read: if place in self.boot.barred": (
            "no simulated question ends its process twice; `tests/protocol/test_halting.py`"
        ),
        "Executor._on_draw_digest: except BaseException": "snapshots that fail do so in bases only",
        "Executor._undone: return found": "the partitions take turns for ever: for the type checker",
        "Executor._on_saved: if self._doubted is not None": _DIVERGED,
        "Executor._compare: if checkpoint.number": _DIVERGED,
        "Executor._on_replay: if not self._replaying": (
            "what a store still leads to when the executor has halted or begun anew; rare"
        ),
        "Executor._on_replay: if not self._comes_to": _DIVERGED,
        "Executor._comes_to: self._doubted =": _DIVERGED,
        "Executor._comes_to: self._restored, self._replaying": _DIVERGED,
        "Executor._comes_to: self.emit": _DIVERGED,
        "Executor._comes_to: return False": _DIVERGED,
        "Executor._on_settled": _DIVERGED,
        "Executor._on_replay: elif replay.asks": (
            "a store asks after 500 requests or 256 KiB: what follows a base in a run is hardly ever longer"
        ),
        "Executor._begin_restoration: if (state.next": _DEFECT,
        "Executor._on_resume: if restoration is None": "a turn for a restoration that is over; rare",
        "Executor._restore_some: if place in self.boot.barred": (
            "the simulated applications restore what they have written; `tests/protocol/test_restoring.py`"
        ),
        "Executor._restore_some: except BaseException": (
            "the simulated applications restore what they have written; `tests/protocol/test_restoring.py`"
        ),
    },
    "protocol/nodes/learner.py": {
        "Learner._decide: if other.requests": _DEFECT,
    },
    "protocol/nodes/proposer.py": {
        "Proposer._propose: if self.mode": _DEFECT,
        "Proposer._resend: if self._start is None": _DEFECT,
    },
    "protocol/nodes/reads.py": {
        "Reads._find: while len(self._open)": "4,096 rounds of reads that are open: `tests/protocol/test_reads.py`",
        "Reads._settle: if len(self._waiting)": "likewise",
    },
    "protocol/nodes/request_source.py": {
        "RequestSource._take: if self._orders_open < ORDERS_MAX": (
            "16 orders of operators that are open: there is one operator"
        ),
        "RequestSource._moves: return self._order_moved_ms": (
            "long commands of one source that wait for three seconds while others move; rare"
        ),
    },
    "protocol/places.py": {
        "describe: case kind if kind == RESTORATION": "processes end in commands and in snapshots only",
        'describe: return f"a read': "processes end in commands and in snapshots only",
    },
    "protocol/principals.py": {
        "principal_of: if key": "keys: simulated clients have secrets",
        "describe": "for listings",
    },
    "protocol/progress.py": {
        "SourceProgress.note: if epoch < self.epoch": (
            "a request of a former life that is decided after one of the next; rare"
        ),
        "SourceProgress.note: while self.early": (
            "requests that are decided out of their order: a view change with gaps in both views; "
            "`tests/protocol/test_progress.py`"
        ),
        "SourceProgress.note: elif number > self.low": "likewise",
    },
    "protocol/session_quotas.py": {
        "SessionQuotas.no_session: if self.all.sessions": "100,000 sessions",
        "SessionQuotas.no_result: if kept >=": "a principal has one session in a run, whose own bound is lower",
        "SessionQuotas.no_early: if kept": "a principal has one session in a run, whose own bound is lower",
        "SessionQuotas.no_early: if self.all.early_bytes": "all sessions together: strangers send nothing early",
        "SessionQuotas.no_claim: if kept": "more claims than the batch writers of a run make",
        "SessionQuotas.no_claim: if self.all.claims_bytes": "more claims than the batch writers of a run make",
    },
    "protocol/sessions.py": {
        "call: if type(result) is not bytes": "the simulated applications answer with bytes",
        "call: if len(result)": "the simulated applications answer with less than a megabyte",
        "_message: except MemoryError": "errors of the simulated applications have texts",
        "_message: except BaseException": "errors of the simulated applications have texts",
        "tell: except MemoryError": "hooks of the simulated applications do not raise",
        "tell: except BaseException": "hooks of the simulated applications do not raise",
        "Sessions._execute_other: case t.EXPIRE": "strangers send every other kind; this one only the log has",
        "Sessions._answer_early: if session.id in self._sessions": "early commands of a session that goes on; rare",
        "Sessions._answer_skip: self._skips.came_early": (
            "the simulated operator orders skips of commands at which replicas have halted"
        ),
        'Sessions._answer_skip: self._answer(command, t.REJECTED, f"there is no': "likewise",
        "Sessions.read: except MemoryError": "memory runs out in commands only",
        "Sessions._open: if self._is_skipped": "the fatal command is never one that opens a session",
        "Sessions._open_named: if self._is_skipped": "the fatal command is never one that opens a session",
        "Sessions._open_named: if (refusal :=": "clients with names need fewer sessions than there may be",
        "Sessions._remove: if session.name": (
            "sessions with names are closed by operators only, and the simulated one closes others"
        ),
        "Sessions._claim: if refusal is not None": "more claims than the batch writers of a run make",
        "Sessions._expire_now: if not self._close": "the end of a session is never the fatal command",
    },
    "protocol/skips.py": {
        "Skips.came_early": "the simulated operator orders skips of commands at which replicas have halted",
    },
    "protocol/state_digest.py": {
        "DrawnDigest.go_on: if size <= 0": "states in a run are drawn at once: 4 MiB",
    },
    "protocol/throttle.py": {
        "Throttle.take: if count": _DEFECT,
    },
    "protocol/transfer.py": {
        "Transfer.note: if progress.life < life": ("a report of a former life that comes after one of the next; rare"),
    },
    "protocol/tuples/codec.py": {
        "decode_tuple: except DECODE_ERRORS": (
            "what is garbage is refused with its frame; this is for votes in a frame that is right otherwise, "
            "and for the streaming runtime"
        ),
        "_explain": "likewise",
    },
    "protocol/tuples/commands.py": {
        "commands_of: except DECODE_ERRORS": "requests come from request sources, which encode commands",
    },
    "protocol/window.py": {
        "Window.__init__: if minimum < 0": _DEFECT,
        "Window.__getitem__: if not self.min": _DEFECT,
        "Window.slice: if not self.min": _DEFECT,
        "Window.extend: if len(values)": _DEFECT,
        "Window.put: if not self.min": _DEFECT,
    },
    "storage/base_format.py": {
        "write_base: except BaseException": "whoever begins an era sees to it that the disk does what it is told",
        "_Pieces.take: if not self._fill": (
            "a base that is cut off is mostly noticed by what it lacks at its end; rare"
        ),
        "_parts: if length > pieces.size": "a length that is damaged and too long: rare",
        "reading_base: if path.stem": (
            "a base under the name of another: nothing renames bases; `tests/storage/test_base_files.py`"
        ),
        "_header: except OtherVersion": _OTHER_VERSION,
    },
    "storage/bases.py": {
        "Bases._is_foreign: except ForeignBase": "a base of a former era in the place of a new one; rare",
        "Bases._sync_name: except OSError": "a directory that cannot be synced when a base was brought here; rare",
        "Bases._read_or_refuse: except FileNotFoundError": (
            "a base that goes while it is looked for: retention and reading take turns in a run"
        ),
        "Bases._set_aside: except OSError": "a base that is damaged, on a disk that fails just then; rare",
        "Bases._look_at: except FileNotFoundError": (
            "a base that goes while it is looked for: retention and reading take turns in a run"
        ),
        "Bases._remove: except OSError": "a base that cannot be removed; rare",
    },
    "storage/execution_record.py": {
        "read_slot: except msgspec.DecodeError": (
            "behind a checksum that is right: files of another version: there is one, and golden files of it in"
            " the tests"
        ),
        "ExecutionRecord.__init__: if size not in": (
            "another length than any version has had: nothing cuts this file in a run"
        ),
    },
    "storage/journal.py": {
        "FileJournal._open: except BlockingIOError": (
            "two processes with one journal: in a run, an old process has its own disk; `tests/storage/test_journal.py`"
        ),
        "FileJournal._open: except OSError": "a file system without locks",
        "FileJournal.set_aside: for path in": "more than four journals that were set aside in one place; rare",
        "FileJournal.rename: if not self.is_empty": _DEFECT,
        "FileJournal._go_on: if last.head is None": _DEFECT,
        "FileJournal.append: if self.broken": "a journal that has failed is not written again: its process ends",
        "FileJournal._begin_segment: if self._unbegun": "a segment that could not be begun, nor removed; rare",
        "FileJournal._begin_segment: if self._marker is None": (
            "a first segment whose end marker could not be made at once; rare"
        ),
        "read_journal: except format.ForeignJournal": _OTHER_VERSION,
        "read_journal: problems.append": "a marker of another cluster",
        "read_journal: marker = None": "a marker of another cluster",
        "read_journal: for number in foreign": "segments of another cluster among our own",
        "_refuse: raise JournalError": "a directory of another cluster: a driver refuses it before",
        "_read_marker: except format.ForeignJournal": _OTHER_VERSION,
        "journal_name: except NotADirectoryError": "the operator's: something else lies where the journal belongs",
        "journal_name: except (OSError": _OTHER_VERSION,
    },
    "storage/lives.py": {
        "read_lives: except msgspec.DecodeError": (
            "behind a checksum that is right: files of another version: there is one, and golden files of it in"
            " the tests"
        ),
        "read_lives: if known.version": _OTHER_VERSION,
    },
    "storage/log.py": {
        "DecidedLog.work: if self._failed": _STORE_DEFECT,
        "DecidedLog.work: except (ForeignLog": _STORE_DEFECT,
        "DecidedLog.work: except Exception": _STORE_DEFECT,
        "DecidedLog._fail": _STORE_DEFECT,
        "DecidedLog._handle_all: case t.Doubted()": _DIVERGED,
        "DecidedLog._settle": _DIVERGED,
        "DecidedLog._hold: if len(self._held)": "1,024 checkpoints that wait",
        "DecidedLog._ask_for_base: if self._held and": (
            "a gap that nobody can fill: more than f logs would be damaged in one place; `tests/storage/test_gaps.py`"
        ),
        "DecidedLog._lead_on: if checkpoint is not None": (
            "a segment that is brought while another one before it is missing; rare"
        ),
        "DecidedLog._segment: return None": "a segment that is damaged twice in a row; rare",
    },
    "storage/log_format.py": {
        "read_header: except files.OtherVersion": _OTHER_VERSION,
        "read_segment: if found != identity": "the operator's: files of another cluster or era under our names",
        "read_segment: if block.first": ("a segment whose checksum is right and whose blocks do not follow each other"),
        'read_segment: raise CorruptLog(f"{segment.path}: does not lead': (
            "a segment whose checksum is right under the name of another"
        ),
    },
    "storage/log_writer.py": {
        "Tail.open: if not runs or": (
            "blocks that do not follow each other behind checksums that are right: a stale block; rare"
        ),
        "Tail._sync: except OSError": ("a tail whose sync is refused: `sync_fails` mostly comes to the journal; rare"),
        "Tail._write_again: if zlib.crc32": "likewise, and what was written is gone",
        "Part.take: if self._pending and": _DEFECT,
        "LogWriter.take: if run.first": _DEFECT,
        "LogWriter.seal: if (number": _DEFECT,
        "LogWriter._part_in_gap: if gap is not None": _GAP,
        "LogWriter._end_gap: if self._gap is not None": _GAP,
        "LogWriter._seal_gap: self._end_gap()": _GAP,
        "LogWriter.leap: if self._gap is not None": _GAP,
    },
    "storage/peer_segments.py": {
        "PeerSegments.offers: except FileNotFoundError": (
            "a segment that goes while it is looked for: retention and reading take turns in a run"
        ),
        "PeerSegments.offers: except OSError": "a peer's directory that cannot be listed; rare",
        "Offers.leave_out": _DIVERGED,
    },
    "storage/rebuild.py": {
        "rebuild: except (_Gone": _GONE,
        "rebuild: raise RebuildError": _GONE,
        "_Files.__init__: except OSError": "a directory that cannot be listed: the operator's disk",
        "_Rebuilding.state: except _Unusable": "the simulated applications restore what they have written",
        "_Rebuilding._starts: except t.DECODE_ERRORS": (
            "behind checksums that are right: files of another version: there is one, and golden files of it in"
            " the tests"
        ),
        "_Rebuilding._starts: if (state.next": _DIVERGED,
        "_Rebuilding._agreed_base: self._note": _DIVERGED,
        "_Rebuilding._end_of: except FileNotFoundError": _GONE,
        "_Rebuilding._longest_piece: except FileNotFoundError": _GONE,
        "_Rebuilding._longest_piece: except (OSError": "a tail whose head is damaged; rare",
        "_Rebuilding._piece: raise LogError": "files of another cluster or era under our names",
        "_Rebuilding._begin: except BaseUnreadable": _GONE,
        "_Rebuilding._begin: except Exception": "the simulated applications restore what they have written",
        "_Rebuilding._check: if execution.next": _DIVERGED,
        "_Rebuilding._check: if own != agreed": _DIVERGED,
        "_Rebuilding._runs: except OSError": _GONE,
        "_Rebuilding._runs: raise _Gone": _GONE,
        "_most: if rest and": _DIVERGED,
        "_execute: except NodeHalted": _DEFECT,
        "_execute: if failure": (
            "memory that runs out in an operator's command: simulated applications break down at replicas only"
        ),
    },
    "storage/segments.py": {
        "Segments.holds: if number in self._unread": (
            "whether a segment is here that was not read: it is read when the executor is led by it; rare"
        ),
        "Segments.whole_from": (
            "a gap that nobody can fill: more than f logs would be damaged in one place; `tests/storage/test_gaps.py`"
        ),
        "Segments.adopt: if former is not None": "a second copy of a segment, with another name; rare",
        "Segments.compare: if self._digests": _DIVERGED,
        "Segments.offers: for holder in doubted": _DIVERGED,
        "Segments._put: if instead": _DIVERGED,
        "Segments.doubt": _DIVERGED,
        "Segments._give_way": _DIVERGED,
        "Segments._look_at: except OSError": "a segment that is damaged, on a disk that fails just then; rare",
    },
    "storage/site_storage.py": {
        "SiteStorage.start: if self.journal is None": _DEFECT,
        "SiteStorage.sync: if now_s - self._full_since_s": (
            "ten seconds without room are longer than `disk_full` lasts"
        ),
        "SiteStorage._execution_record: if number in self.records": (
            "a start that begins again without its journal has its records already: only if a journal reads "
            "well and makes no sense"
        ),
    },
    "storage/store.py": {
        "ExecutorStore.take: if self._failure": _STORE_DEFECT,
        "ExecutorStore.growing": _STATUS,
        "ExecutorStore.work: except Exception": _STORE_DEFECT,
        "ExecutorStore._fail": _STORE_DEFECT,
    },
}
