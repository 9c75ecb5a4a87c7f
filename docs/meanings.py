"""Words for names that cannot explain themselves in the code: settings and error codes.

The generator refuses a name that has no words here, so nothing is published unexplained.
"""

from __future__ import annotations

from typing import Final

SETTINGS: Final[dict[str, str]] = {
    "host": "The address to listen on.",
    "port": "The port; 0 picks a free one, which the greeting names.",
    "data_dir": "Where database, credentials and host key lie.",
    "db": "The database: `sqlite:///relative/path`, `sqlite:////absolute/path` or "
    "`postgresql://user:password@host:port/database`, which needs `wopr[postgres]`.",
    "db_pool_size": "The most connections that one process has to a database server; at least 3.",
    "db_pool_timeout_seconds": "How long a call waits for a connection before it is answered 503.",
    "db_statement_timeout_seconds": "How long a statement may run, or wait for a row that is held.",
    "db_slow_statement_ms": "From which duration on a statement is logged, without its values; 0 "
    "logs none.",
    "workflows": "Directories whose JSON and YAML definitions are registered at start.",
    "conformance": "Install the conformance workflows and the node types that only they use.",
    "log_format": "`text` for a terminal, `json` for a machine.",
    "log_level": "From which level on to log: `debug`, `info`, `warning` or `error`.",
    "api_keys": "Keys that live in memory only: `key:tenant[:role],...`; the role is `admin` "
    "unless named. A key has at least 16 characters.",
    "max_body_bytes": "The largest request body; a larger one is answered 413.",
    "max_metadata_bytes": "The largest `metadata` of a run.",
    "max_workflow_bytes": "The largest workflow definition, as JSON.",
    "max_agent_bytes": "The largest agent manifest, as JSON.",
    "max_workflow_nodes": "The most nodes of a workflow.",
    "max_workflow_edges": "The most edges of a workflow.",
    "max_workflow_expressions": "The most expressions, patterns and conditions of edges of a workflow.",
    "max_workflow_expression_bytes": "The most characters of all expressions and patterns of a workflow.",
    "max_schema_bytes": "The largest JSON Schema in a workflow or an agent manifest.",
    "max_schema_subschemas": "The most subschemas that such a schema may have once every `$ref` is replaced by "
    "its target.",
    "check_processes": "How many subprocesses do checks and evaluations that may take long. One tenant uses at "
    "most half of them.",
    "check_seconds": "After how long such a check is stopped.",
    "check_wait_seconds": "How long such a check waits for a free subprocess.",
    "check_memory_mib": "How much memory one of these subprocesses may use; at least 256.",
    "rate_limit": "Requests per second that one key may make, with bursts of twice as many; "
    "0 is no limit.",
    "quota_requests_per_second": "Requests per second that the keys of one tenant may make together, with bursts of "
    "twice as many; 0 is no limit.",
    "quota_queued_runs": "How many runs of one tenant may be due and wait for a turn before further runs of it are "
    "refused; 0 is no limit.",
    "quota_stored_bytes": "How many bytes one tenant may have stored before further runs, definitions, agents, "
    "annotations, memories, KAHN lines and traces of it are refused. Counted are events, definitions, agent manifests, "
    "annotations, review queues, judges, remembered answers, memories, dead letters of webhooks, KAHN lines and traces; "
    "0 is no limit.",
    "quota_artifact_bytes": "How many bytes of artifacts one tenant may have stored before further runs of it are "
    "refused; 0 is no limit.",
    "quota_workflow_versions": "How many versions of workflow definitions one tenant may have registered; 0 is no limit.",
    "quota_agents": "How many versions of agent manifests one tenant may have installed; 0 is no limit.",
    "quota_events_per_second": "Events per second that the runs of one tenant may append, with bursts of twice as many. "
    "Forks, children and observed runs count too. Beyond it its runs are delayed, and new runs are refused; 0 is no limit.",
    "quota_model_tokens_per_day": "Model tokens that the runs of one tenant may use in one day (UTC); beyond it a node "
    "that asks a model fails. 0 is no limit.",
    "ingest_rate_limit": "Pushes of KAHN lines per second that one tenant may make, with bursts of twice as "
    "many; 0 is no limit.",
    "otlp_settle_seconds": "How long after its last span a whole trace that was exported here is told to the "
    "fleet.",
    "otlp_quiet_seconds": "How long after its last span a trace without its root is told to the fleet all the "
    "same.",
    "otel_content": "Put what models and tools were told and said into the spans that leave the host, and keep "
    "what tools were told and said of those that come in; redacted.",
    "max_in_flight": "Authenticated requests in progress before the host answers 503. A request whose body has not "
    "arrived does not count.",
    "max_incoming_bytes": "Bytes of request bodies that arrive or are not answered yet; more are answered 503. One "
    "tenant may hold a quarter of them: set at least four times `max_body_bytes`.",
    "metrics_open": "Serve `/metrics` without a key. Otherwise it needs the scope `metrics:read`.",
    "metrics_port": "Serve `/metrics`, and nothing else, on this port too, without a key. 0 is no such port. The main "
    "port needs a key all the same.",
    "metrics_host": "The address of `metrics_port`; empty is the address of the host.",
    "failed_auth_limit": "Requests with a wrong or missing key, and failed sign-ins, of one address in a minute; a "
    "further one is answered 429. A valid key works all the same. 0 is no limit.",
    "open_rate_limit": "Requests per second of one address for what needs no key: discovery, the sign-in page, answers "
    "by token, paths that do not exist, and console pages without a valid session. Bursts may be four times as many; a "
    "further one is answered 429. Probes are not counted. 0 is no limit.",
    "max_header_bytes": "The largest request line with headers; a larger one is answered 431.",
    "header_seconds": "How long the request line and headers may take to arrive; then 408.",
    "body_grace_seconds": "How long a request body may take to arrive beyond `min_body_rate`; then 408.",
    "min_body_rate": "The lowest rate of a request body, in bytes per second, after the grace period.",
    "keep_alive_seconds": "How long a connection may be idle between requests before it is closed.",
    "max_connections": "Open connections of one process. A tenth is kept for those without a valid key so far. A "
    "further one closes one that waits for its client, or is answered 503. The system's limit of open files, less "
    "256, is a limit too.",
    "max_connections_per_address": "Open connections of one client address, at most half of `max_connections`; a further "
    "one is answered 429. An IPv6 address counts as its /64. Behind `trusted_proxies` the requests in progress of one client address.",
    "max_unauthenticated_connections": "Open connections that have had no request with a valid key. A new one then "
    "closes the one that has waited longest for its client, of the address that has the most.",
    "trusted_proxies": "Addresses and networks (CIDR) of proxies, separated by commas, whose `X-Forwarded-For` is "
    "believed. Empty: the header is ignored.",
    "blocked_loop_seconds": "After how long a blocked event loop is logged with the node that blocks it, "
    "and counted in `wopr_event_loop_blocked_total`; 0 is never.",
    "max_readers_per_run": "Open streams on one run before the next is answered 429.",
    "max_heavy_reads": "Comparisons, debug bundles, console pages and logs as JSON of large runs that one process makes "
    "at once; the others wait. One tenant makes one at a time.",
    "max_outgoing_per_tenant": "Requests of nodes and tools of one tenant to other hosts that are under way at once in "
    "one process. Further ones wait as long as their timeout allows, and then fail.",
    "max_deliveries_per_tenant": "Deliveries to webhooks of one tenant that are under way at once in one process. "
    "Further ones wait.",
    "max_lookups_per_tenant": "Names that are resolved at once for the requests of one tenant, and as many for its "
    "webhooks, in one process. Further requests wait as long as their timeout allows, and then fail.",
    "max_streams_per_key": "Open streams of one key before the next is answered 429. Event streams, polls that "
    "wait, exports and requests of MCP clients count.",
    "max_streams_per_tenant": "Open streams of one tenant before the next is answered 429.",
    "max_streams": "Open streams of one process before the next is answered 429.",
    "max_console_streams_per_key": "Live pages of the console that are open with one key. They do not count as "
    "streams of the key.",
    "max_stream_buffer_bytes": "Bytes that one process holds for clients that do not read: large answers, streams and the "
    "buffers of connections. Beyond it, the connections that have waited longest for their clients are closed, first "
    "those of the tenant that holds the most. A large answer that finds no room is answered 503.",
    "send_timeout_seconds": "After how many seconds a connection is closed whose client reads nothing of what "
    "was sent to it. The reader of a stream resumes with `Last-Event-ID`.",
    "min_read_rate": "The lowest rate at which a client may read a large answer or stream, in bytes per second, after "
    "`send_timeout_seconds`; a slower connection is closed.",
    "executes": "Execute nodes in this process; `wopr serve --no-worker` leaves them to workers. Only "
    "where processes share a database.",
    "serves": "Answer requests; `wopr worker` does not.",
    "wakeups_at_once": "How many wake-ups one process works on at once. Only where processes share a "
    "database.",
    "max_held_runs": "How many runs one process has nodes of in flight before it leaves more to others. "
    "Only where processes share a database.",
    "max_held_runs_per_tenant": "The same for the runs of one tenant; 0 is four fifths of all.",
    "max_held_bytes": "The most memory, estimated, of the large runs (64 KiB and more) that one process has nodes of in "
    "flight. One tenant may have half of it, and always one run. Further runs wait until there is room.",
    "max_descendants": "How many runs may descend from one root run, as children and forks at any depth; "
    "0 is no limit.",
    "max_active_runs": "How many runs of one tenant may be active, that is, have not ended; 0 is no limit.",
    "max_value_bytes": "The most bytes, as JSON, of one value that a node gives as an output, a variable, a channel "
    "write or a member of an event, or that a person answers.",
    "max_event_bytes": "The most bytes of one event.",
    "max_run_bytes": "The most bytes of all events of one run and of the values that they refer to; a run beyond it "
    "fails.",
    "inline_value_bytes": "A value of more bytes, as JSON, is stored as an artifact of its run, and events refer to it; 0 "
    "keeps all values in the events.",
    "code_version": "The version of the code that this process executes nodes with; else a digest of the app's "
    "sources, or the version of wopr.",
    "retention_days": "How long a run is kept after it has ended; at least 7.",
    "fleet_keep_days": "How many days a KAHN run is kept after its last push, by this host's clock; 0 keeps "
    "pushed runs for ever, and the lines of the host's own runs for 90 days.",
    "drain_seconds": "How long a stop waits for requests under way.",
    "heartbeat_seconds": "After how long a silence a stream sends a comment; at most 30.",
    "feedback": "Take annotations of runs; switched off, their operations answer 501.",
    "console": "Serve the web console at `/`.",
    "public_url": "The address that people reach the host at, such as `https://wopr.example.com`, when a "
    "proxy stands before it.",
    "allow_private_destinations": "Let nodes and webhooks call private addresses and plain HTTP. "
    "For tests only. The host then does not advertise `httpClient`.",
    "webhook_retry_ms": "How long after a failed delivery it is tried again; each further time twice "
    "as long, up to an hour.",
    "webhook_attempts": "How often an event is tried before it becomes a dead letter.",
    "webhook_open_seconds": "How long a receiver is left alone after four failures in a row.",
    "audit_reads": "Which reads are on the audit log: `off`, `sensitive` (artifacts, exports, raw KAHN "
    "lines, credentials, webhooks, the audit log itself) or `all`.",
    "audit_sink": "Where every audit entry is copied to: `file:///absolute/path` or an `https://` URL.",
    "audit_sink_secret": "The secret that signs what is posted to an `https://` sink; at least 32 "
    "characters.",
    "host_key": "The host secret as base64 of 32 bytes or more, in place of the file in the data "
    "directory.",
    "encryption_key": "Keys that encrypt stored content: base64 of 32 bytes each, separated by commas, the "
    "one to write with first. Without a key nothing is encrypted.",
    "encryption_key_file": "A file with such keys, in place of the variable; only its owner may read it.",
    "encryption_key_command": "A command that prints such keys, such as a call of a key management "
    "service; it is run at the start, without a shell.",
    "confidence_floor": "How sure a supervisor must be for its decision to be carried out; 0.5 to 1.",
    "confidence_interrupt_kind": "How a person is asked about a decision below the floor: "
    "`approval`, `clarification`, or a kind of your own, `x-host-<host>-<kind>`.",
    "vendor_kind_means": "What a kind of your own corresponds to: `clarify` or `escalate`.",
    "vendor_kind_status": "The status of a run that waits with a kind of your own: "
    "`waiting-approval`, `waiting-input` or `waiting-external`. Empty: `waiting-input` for `clarify`, "
    "`waiting-approval` for `escalate`.",
    "vendor_kind_consumers": "The consumers that match on the name of a kind of your own, separated "
    "by commas. Its mapping document lists them.",
    "literal_vendor_kind": "Write a kind of your own into the `kind` of events, although their schemas "
    "exclude it. Otherwise they say `custom`.",
    "suppress_escalation": "Let decisions below an agent's threshold pass, on the record.",
    "reasoning_verbosity": "How much agents tell of their reasoning, unless a run says otherwise: "
    "`summary`, `full` or `off`.",
    "reasoning_token_limit": "How long a summary of reasoning may be, in tokens of four bytes.",
    "tool_rate_limit": "Calls per second that the runs of one key may make of one tool; 0 is no "
    "limit.",
    "default_model": "The model of nodes that name none, as `provider:model`.",
    "model_servers": "OpenAI-compatible model servers as `name=url,...`; `name:model` then names a "
    "model of theirs, and `<NAME>_API_KEY` their key, if they want one. The name `openai`, `anthropic` or "
    "`google` is that provider at another address, such as a gateway, in the provider's own API.",
    "models_allowed": "The models that may be used, as patterns of `provider:model` parted by commas; "
    "without any all may.",
    "require_own_keys": "Use no model key of the operator's: every run brings a credential of its "
    "tenant.",
    "secrets_dir": "A directory of credentials as files, `<tenant>/<name>`.",
    "mcp": "Serve workflows to MCP clients at `/mcp`, where the package `mcp` is installed; switched off, "
    "it answers 501.",
    "mcp_call_seconds": "How long an MCP client is kept waiting for a run, which then goes on without it; 0 "
    "is no limit.",
    "mcp_origins": "Origins of web pages, such as `https://app.example.com`, separated by commas, that may call `/mcp` "
    "beside the host's own.",
    "mcp_servers": "A YAML or JSON file that declares MCP servers whose tools agents may call.",
    "max_budget_tokens": "How many tokens a run may use; 0 is no limit.",
    "max_budget_cost_usd": "How much a run may cost, in US dollars and as far as prices are known; 0 "
    "is no limit.",
    "max_model_calls": "How often a run may ask models; 0 is no limit.",
    "max_tool_calls": "How often a run may call tools; 0 is no limit.",
    "max_node_executions": "How many node executions a run may have.",
    "max_run_duration_ms": "How long a run may take, waits included.",
    "max_loop_iterations": "How often one loop may go round.",
}

ANSWERS: Final[dict[str, str]] = {
    "invalid_from_seq": "`fromSeq` of a fork lies beyond the end of the source's log.",
    "replay_memory_snapshot_unavailable": "A branch whose history wrote memories: they cannot be "
    "shown as they were.",
    "validation_error": "The request is wrong; `details.field` names where.",
    "unsupported_stream_mode": "A stream mode, or a mix of modes, that does not exist.",
    "unsupported_model_class": "An agent whose class of model this host does not advertise.",
    "unsupported_mock_provider": "A mock provider that this host does not have.",
    "unsupported_force_engine_version": "A forced engine version outside the advertised range.",
    "webhook_url_rejected": "A webhook address that the host does not dial.",
    "channel_access_denied": "A channel that this caller may not use.",
    "channel_cross_engine_write_forbidden": "A channel write from another engine.",
    "INVALID_RESUME_VALUE": "An answer to an interrupt that does not fit its schema.",
    "credential_scope_unsupported": "A credential scope that this host does not have.",
    "capability_required": "It needs a capability that this host does not advertise; "
    "`details.requiredCapability` names it.",
    "unknown_child_workflow": "A workflow that starts another one which is not registered.",
    "unauthenticated": "No API key, or one that nobody knows.",
    "key_expired": "The key is past its time.",
    "key_revoked": "The key was revoked.",
    "forbidden": "The key is valid and may not do this; `details.scopeRequired` says what it lacks.",
    "run_forbidden": "A run that this key may not touch.",
    "workspace_membership_required": "A workspace that this key is no member of.",
    "mock_provider_forbidden": "Mock providers are for test keys.",
    "force_engine_version_forbidden": "Forcing an engine version is for test keys.",
    "credential_forbidden": "A credential that this key may not use.",
    "credential_scope_forbidden": "A credential scope that this key may not use.",
    "not_found": "Unknown, or another tenant's: the answer is the same.",
    "interrupt_not_found": "No such interrupt.",
    "subscription_not_found": "No such webhook subscription.",
    "method_not_allowed": "The path exists, with another method; `details.allowed` names them.",
    "not_acceptable": "No form of the answer that the caller accepts.",
    "run_already_active": "`X-Dedup: enforce` found an active run of the same workflow.",
    "run_state_conflict": "The run's present state forbids it.",
    "workflow_exists": "This id and version hold other content.",
    "agent_exists": "This agent and version hold other content.",
    "hold_lost": "Another process executes the run's nodes by now. Handled inside the host; no client "
    "sees it.",
    "sequence_taken": "A lost race for a run's log. Retried inside the host; no client sees it.",
    "idempotency_in_flight": "The first request with this key is still under way.",
    "idempotency_key_mismatch": "The key was used with another body.",
    "interrupt_already_resolved": "Somebody answered before.",
    "workspace_conflict": "The workspace has changed meanwhile.",
    "would_rewrite": "It would rewrite what is already on a log.",
    "descendant_limit_exceeded": "The root run has as many descendants, children and forks at any depth, as the "
    "host allows.",
    "review_conflict": "A review of a run that the reviewer does not hold, or no longer.",
    "interrupt_expired": "The interrupt's time is over.",
    "interrupt_gone": "The interrupt is no longer there.",
    "run_expired": "The run was there; retention removed it.",
    "workspace_too_large": "More than a workspace may hold.",
    "payload_too_large": "A body over the limit.",
    "unsupported_media_type": "A body that is not JSON.",
    "interrupt_cancelled": "The interrupt was cancelled.",
    "correlation_mismatch": "An event that belongs to another interrupt.",
    "unprocessable": "Well formed, but this host cannot do it.",
    "upgrade_required": "The client's version is too old.",
    "header_too_large": "The request line and headers are over the limit.",
    "request_timeout": "The headers or the body of the request arrived too slowly.",
    "rate_limited": "Too many requests; `Retry-After` says when to come back.",
    "quota_exceeded": "A quota is used up: `details` name it, its limit and its use; `Retry-After` says when to come back.",
    "internal_error": "A fault of the host; `details.correlationId` finds it in the log.",
    "capability_not_provided": "A capability that is switched off.",
    "service_unavailable": "Draining, over capacity, or the store takes no writes.",
}

RUNS: Final[dict[str, str]] = {
    "decision_rejected": "A person rejected the agent's decision.",
    "framework_error": (
        "A wrapped graph or agent of another framework raised; `details` names both."
    ),
    "interrupt_timeout": "Nobody answered in time.",
    "descendant_limit_exceeded": "A child beyond the number of descendants that one root run may have.",
    "value_too_large": "A value that is larger than `WOPR_MAX_VALUE_BYTES`.",
    "event_too_large": "An event that is larger than `WOPR_MAX_EVENT_BYTES`.",
    "run_data_limit_exceeded": "All events of the run together are larger than `WOPR_MAX_RUN_BYTES`.",
    "recursion_limit_exceeded": "More node executions than allowed.",
    "run_timeout": "The run took longer than its limit.",
    "loop_limit_exceeded": "A loop went round too often.",
    "budget_exhausted": "The run's budget is spent.",
    "token_budget_exceeded": "More tokens than the run may use.",
    "quota_exceeded": "A quota of the tenant is used up, such as its active runs, its stored bytes or the model tokens of a day.",
    "capability_not_provided": "A node needs a runtime capability that this host does not provide.",
    "engine_version_mismatch": "The log is of an engine version that this host cannot continue.",
    "version_out_of_range": "A pinned version lies outside what the node's code still knows.",
    "credential_required": "A node needs a credential, and none is given.",
    "credential_unavailable": "The credential cannot be had now.",
    "credential_not_found": "No such credential.",
    "provider_policy_denied": "The operator does not allow this model provider.",
    "channel_schema_breaking_change": "An event of a channel version that is no longer accepted.",
    "channel_access_denied": "The node is not among the channel's readers or writers.",
    "replay_source_missing": "The run to replay is not there.",
    "replay_memory_snapshot_unavailable": "The memory that the replay needs is gone.",
    "replay_diverged_at_refusal": "The replay met a refusal that the original did not.",
    "no_pending_decision": "A dispatch without a decision to carry out.",
    "fan_out_unsupported": "A decision for several workers where one is allowed.",
    "unknown_child_workflow": "The node starts a workflow that is not registered.",
    "handoff_task_schema_violation": "An agent would be handed what its manifest does not take.",
    "handoff_return_schema_violation": "An agent handed back what its manifest does not promise.",
    "envelope_payload_invalid": "A model's answer does not fit its schema.",
    "envelope_truncation_unrecoverable": "A model's answer was cut off, and again on every retry.",
    "envelope_refused_by_provider": "The model refused.",
    "model_error": "A model gave an answer that cannot be read.",
    "model_rejected": "A model provider rejected the request; asking again would not help.",
    "model_timeout": "A model gave no answer in time.",
    "model_unavailable": "A model provider failed or could not be reached, and again on every retry.",
    "tool_call_invalid": "A model kept calling tools that it does not have, or with wrong arguments.",
    "tool_error": "A tool that a node calls without an agent refused, or failed.",
    "tool_timeout": "A tool that a node calls without an agent took too long.",
    "tool_unavailable": "The server of a tool cannot be reached, or has no such tool.",
    "credential_forbidden": "The credential is not meant for where it would have gone.",
    "runner_unavailable": "What should execute the node cannot be reached.",
    "residency_unavailable": "No place to run where the run must stay.",
    "unsupported_node_type": "On logs of earlier versions: the host had no code for a node's type.",
    "validation_error": "A node was given what it cannot take.",
    "schema_check_failed": "A value could not be checked against its JSON Schema within the limits of time and "
    "memory.",
    "expression_error": "An expression has no value, or costs too much.",
    "node_error": "A node failed without a code of its own.",
    "node_timeout": "A node took longer than its `timeout`.",
    "child_failed": "A child run failed.",
    "child_cancelled": "A child run was cancelled.",
    "egress_denied": "A destination that the host does not dial.",
    "http_error": "A service did not answer, or answered with an error.",
    "internal_error": "A fault of the host.",
    "interrupt_rejected": "A person said no.",
}
