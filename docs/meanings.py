"""Descriptions of settings and error codes for the reference.

The generator refuses a name without a description here.
"""

from __future__ import annotations

from typing import Final

SETTINGS: Final[dict[str, str]] = {
    "host": "The address to listen on.",
    "port": "The port to listen on. With 0 the host picks a free port and prints it at start.",
    "data_dir": "The directory of the database, the credentials and the host key.",
    "db": "The database: `sqlite:///relative/path`, `sqlite:////absolute/path` or "
    "`postgresql://user:password@host:port/database`, which needs `wopr[postgres]`.",
    "db_pool_size": (
        "Maximum number of connections of one process to a database server; at least 3."
    ),
    "db_pool_timeout_seconds": "How long a call waits for a connection before the response is 503.",
    "db_statement_timeout_seconds": (
        "Maximum duration of a statement, including the wait for a locked row."
    ),
    "db_slow_statement_ms": (
        "Statements that take at least this long are logged, without their values. 0 turns "
        "this off."
    ),
    "workflows": "Directories whose JSON and YAML definitions are registered at start.",
    "conformance": "Install the conformance workflows and the node types that only they use.",
    "log_format": "`text` for a terminal, `json` for log collectors.",
    "log_level": "The lowest level to log: `debug`, `info`, `warning` or `error`.",
    "api_keys": (
        "Keys that are kept only in memory: `key:tenant[:role],...`. The default role is "
        "`admin`. A key has at least 16 characters."
    ),
    "max_body_bytes": "Maximum size of a request body. A larger body gets 413.",
    "max_metadata_bytes": "Maximum size of the `metadata` of a run.",
    "max_workflow_bytes": "Maximum size of a workflow definition, as JSON.",
    "max_agent_bytes": "Maximum size of an agent manifest, as JSON.",
    "max_workflow_nodes": "Maximum number of nodes of a workflow.",
    "max_workflow_edges": "Maximum number of edges of a workflow.",
    "max_workflow_expressions": (
        "Maximum number of expressions, patterns and edge conditions of a workflow."
    ),
    "max_workflow_expression_bytes": (
        "Maximum number of characters of all expressions and patterns of a workflow."
    ),
    "max_schema_bytes": "Maximum size of a JSON Schema in a workflow or an agent manifest.",
    "max_schema_subschemas": (
        "Maximum number of subschemas of such a schema after every `$ref` is replaced by its "
        "target."
    ),
    "check_processes": (
        "Number of subprocesses for checks and evaluations that may take long. One tenant "
        "uses at most half of them."
    ),
    "check_seconds": "Maximum duration of such a check.",
    "check_wait_seconds": "How long such a check waits for a free subprocess.",
    "check_memory_mib": "Maximum memory of one of these subprocesses; at least 256.",
    "rate_limit": (
        "Maximum number of requests per second of one key, with bursts of twice as many; 0 is "
        "no limit."
    ),
    "quota_requests_per_second": (
        "Maximum number of requests per second of all keys of one tenant, with bursts of "
        "twice as many; 0 is no limit."
    ),
    "quota_queued_runs": (
        "Maximum number of due runs of one tenant that wait for a turn. Further runs are "
        "refused; 0 is no limit."
    ),
    "quota_stored_bytes": (
        "Maximum number of stored bytes of one tenant. Above it, new runs, definitions, "
        "agents, annotations, memories, KAHN lines and traces are refused. Counted are "
        "events, definitions, agent manifests, annotations, review queues, judges, stored "
        "responses, memories, dead letters of webhooks, KAHN lines and traces; 0 is no limit."
    ),
    "quota_artifact_bytes": (
        "Maximum number of stored bytes of artifacts of one tenant. Above it, new runs are "
        "refused; 0 is no limit."
    ),
    "quota_workflow_versions": (
        "Maximum number of registered workflow versions of one tenant; 0 is no limit."
    ),
    "quota_agents": (
        "Maximum number of installed agent manifest versions of one tenant; 0 is no limit."
    ),
    "quota_events_per_second": (
        "Maximum number of events per second of the runs of one tenant, with bursts of twice "
        "as many. Forks, children and observed runs count too. Above it the tenant's runs are "
        "delayed, and new runs are refused; 0 is no limit."
    ),
    "quota_model_tokens_per_day": (
        "Maximum number of model tokens of the runs of one tenant in one day (UTC). Above it "
        "a node that calls a model fails. 0 is no limit."
    ),
    "ingest_rate_limit": (
        "Maximum number of pushes of KAHN lines per second of one tenant, with bursts of "
        "twice as many; 0 is no limit."
    ),
    "otlp_settle_seconds": (
        "How long after its last span a complete received trace is added to the fleet."
    ),
    "otlp_quiet_seconds": (
        "How long after its last span a received trace without its root span is added to the fleet."
    ),
    "otel_content": (
        "Include prompts, responses and the inputs and outputs of tools in exported spans, "
        "and keep the inputs and outputs of tools of received spans; redacted."
    ),
    "max_in_flight": (
        "Maximum number of authenticated requests in progress. Further requests get 503. A "
        "request whose body has not arrived does not count."
    ),
    "max_incoming_bytes": (
        "Maximum number of bytes of request bodies that are arriving or have no response yet. "
        "Further requests get 503. One tenant can use a quarter: set at least four times "
        "`max_body_bytes`."
    ),
    "metrics_open": "Serve `/metrics` without a key. Otherwise it needs the scope `metrics:read`.",
    "metrics_port": (
        "A separate port that serves only `/metrics`, without a key. 0 turns it off. The main "
        "port still needs a key."
    ),
    "metrics_host": "The address of `metrics_port`. Empty: the address of the host.",
    "failed_auth_limit": (
        "Maximum number of requests with a wrong or missing key, and failed sign-ins, of one "
        "address in a minute. Further requests get 429. A valid key still works. 0 is no "
        "limit."
    ),
    "open_rate_limit": (
        "Maximum number of requests per second of one address for paths that need no key: "
        "discovery, the sign-in page, answers by token, paths that do not exist, and console "
        "pages without a valid session. Bursts can be four times as many. Further requests "
        "get 429. Health checks are not counted. 0 is no limit."
    ),
    "max_header_bytes": "Maximum size of the request line and headers. Larger ones get 431.",
    "header_seconds": "Maximum time for the request line and headers to arrive; then 408.",
    "body_grace_seconds": (
        "Time for a request body to arrive in addition to `min_body_rate`; then 408."
    ),
    "min_body_rate": "Minimum rate of a request body, in bytes per second, after the grace period.",
    "keep_alive_seconds": "Maximum idle time of a connection between requests.",
    "max_connections": (
        "Maximum number of open connections of one process. A tenth is reserved for "
        "connections without a valid key so far. A further connection closes an idle one, or "
        "gets 503. The system's limit of open files, less 256, also applies."
    ),
    "max_connections_per_address": (
        "Maximum number of open connections of one client address, at most half of "
        "`max_connections`. A further one gets 429. An IPv6 address counts as its /64. Behind "
        "`trusted_proxies` it limits the requests in progress of one client address."
    ),
    "max_unauthenticated_connections": (
        "Maximum number of open connections without a request with a valid key. A new one "
        "then closes the one that has been idle longest, of the address with the most "
        "connections."
    ),
    "trusted_proxies": (
        "Addresses and networks (CIDR) of proxies, separated by commas, whose "
        "`X-Forwarded-For` is trusted. Empty: the header is ignored."
    ),
    "blocked_loop_seconds": (
        "An event loop that is blocked for this long is logged with the node that blocks it, "
        "and counted in `wopr_event_loop_blocked_total`. 0 turns this off."
    ),
    "max_readers_per_run": "Maximum number of open streams on one run. A further one gets 429.",
    "max_heavy_reads": (
        "Maximum number of comparisons, debug bundles, console pages and logs as JSON of "
        "large runs that one process makes at the same time; the others wait. One tenant "
        "makes one at a time."
    ),
    "max_outgoing_per_tenant": (
        "Maximum number of active requests of nodes and tools of one tenant to other hosts in "
        "one process. Further ones wait up to their timeout, and then fail."
    ),
    "max_deliveries_per_tenant": (
        "Maximum number of active webhook deliveries of one tenant in one process. Further "
        "ones wait."
    ),
    "max_lookups_per_tenant": (
        "Maximum number of parallel name lookups for the requests of one tenant, and the same "
        "number for its webhooks, in one process. Further requests wait up to their timeout, "
        "and then fail."
    ),
    "max_streams_per_key": (
        "Maximum number of open streams of one key. A further one gets 429. Event streams, "
        "polls that wait, exports and requests of MCP clients count."
    ),
    "max_streams_per_tenant": (
        "Maximum number of open streams of one tenant. A further one gets 429."
    ),
    "max_streams": "Maximum number of open streams of one process. A further one gets 429.",
    "max_console_streams_per_key": (
        "Maximum number of live console pages of one key. They do not count as streams of the key."
    ),
    "max_stream_buffer_bytes": (
        "Maximum number of bytes that one process buffers for slow clients: large responses, "
        "streams and the buffers of connections. Above it, the connections that have waited "
        "longest are closed, first those of the tenant with the most buffered bytes. A large "
        "response that does not fit becomes 503."
    ),
    "send_timeout_seconds": (
        "A connection is closed when its client has read nothing for this long. The reader of "
        "a stream can resume with `Last-Event-ID`."
    ),
    "min_read_rate": (
        "Minimum rate at which a client reads a large response or stream, in bytes per "
        "second, after `send_timeout_seconds`. A slower connection is closed."
    ),
    "executes": (
        "Execute nodes in this process. `wopr serve --no-worker` leaves them to workers. Only "
        "for processes that share a database."
    ),
    "serves": "Serve requests; `wopr worker` does not.",
    "wakeups_at_once": (
        "Number of wake-ups that one process handles at the same time. Only for processes "
        "that share a database."
    ),
    "max_held_runs": (
        "Maximum number of runs with active nodes in one process. Further runs are left to "
        "other processes. Only for processes that share a database."
    ),
    "max_held_runs_per_tenant": "The same for the runs of one tenant; 0 is four fifths of all.",
    "max_held_bytes": (
        "Maximum estimated memory of the large runs (64 KiB and more) with active nodes in "
        "one process. One tenant can use half of it, and always one run. Further runs wait."
    ),
    "max_descendants": (
        "Maximum number of runs that descend from one root run, as children and forks at any "
        "depth; 0 is no limit."
    ),
    "max_active_runs": "Maximum number of runs of one tenant that have not ended; 0 is no limit.",
    "max_value_bytes": (
        "Maximum size, as JSON, of one value: an output, a variable, a channel write or a "
        "member of an event of a node, or an answer of a person."
    ),
    "max_event_bytes": "Maximum size of one event.",
    "max_run_bytes": (
        "Maximum size of all events of one run and of the values that they refer to. A run "
        "above it fails."
    ),
    "inline_value_bytes": (
        "A value larger than this, as JSON, is stored as an artifact of its run, and events "
        "refer to it; 0 keeps all values in the events."
    ),
    "code_version": (
        "The version of the code with which this process executes nodes. Default: a digest of "
        "the app's sources, or the version of wopr."
    ),
    "retention_days": "How long a run is kept after it has ended; at least 7.",
    "fleet_keep_days": (
        "Number of days that a KAHN run is kept after its last push, by this host's clock; 0 "
        "keeps pushed runs without a limit, and the lines of the host's own runs for 90 days."
    ),
    "drain_seconds": "How long a stop waits for active requests.",
    "heartbeat_seconds": "A stream sends a comment after this time without an event; at most 30.",
    "feedback": "Accept annotations of runs. When off, their operations return 501.",
    "console": "Serve the web console at `/`.",
    "public_url": (
        "The public address of the host, such as `https://wopr.example.com`, if it is behind "
        "a proxy."
    ),
    "allow_private_destinations": "Let nodes and webhooks call private addresses and plain HTTP. "
    "For tests only. The host then does not advertise `httpClient`.",
    "webhook_retry_ms": (
        "Delay before a failed delivery is tried again; it doubles each time, up to an hour."
    ),
    "webhook_attempts": "Number of attempts before an event becomes a dead letter.",
    "webhook_open_seconds": "Pause of the deliveries to a receiver after four failures in a row.",
    "audit_reads": (
        "Which reads are recorded in the audit log: `off`, `sensitive` (artifacts, exports, "
        "raw KAHN lines, credentials, webhooks, the audit log itself) or `all`."
    ),
    "audit_sink": (
        "Where every audit entry is copied to: `file:///absolute/path` or an `https://` URL."
    ),
    "audit_sink_secret": (
        "The secret that signs requests to an `https://` sink; at least 32 characters."
    ),
    "host_key": (
        "The host key as base64 of 32 bytes or more, instead of the file in the data directory."
    ),
    "encryption_key": (
        "Keys that encrypt stored content: base64 of 32 bytes each, separated by commas. The "
        "first key encrypts. Without a key nothing is encrypted."
    ),
    "encryption_key_file": (
        "A file with such keys, instead of the variable. Only its owner may be able to read it."
    ),
    "encryption_key_command": (
        "A command that prints such keys, such as a call of a key management service. It runs "
        "once at start, without a shell."
    ),
    "confidence_floor": (
        "Minimum confidence of a supervisor's decision that is executed without a person; 0.5 to 1."
    ),
    "confidence_interrupt_kind": (
        "The interrupt kind for a decision below the confidence floor: `approval`, "
        "`clarification`, or a vendor kind, `x-host-<host>-<kind>`."
    ),
    "vendor_kind_means": "The canonical meaning of the vendor kind: `clarify` or `escalate`.",
    "vendor_kind_status": (
        "The status of a run that waits with the vendor kind: `waiting-approval`, "
        "`waiting-input` or `waiting-external`. Empty: `waiting-input` for `clarify`, "
        "`waiting-approval` for `escalate`."
    ),
    "vendor_kind_consumers": (
        "The consumers that match the vendor kind by name, separated by commas. The mapping "
        "document lists them."
    ),
    "literal_vendor_kind": (
        "Write the vendor kind into the `kind` of events, although their schemas exclude it. "
        "Otherwise they contain `custom`."
    ),
    "suppress_escalation": (
        "Accept decisions below an agent's threshold without a person, and record that on the log."
    ),
    "reasoning_verbosity": (
        "How much of their reasoning agents write to the log, unless a run overrides it: "
        "`summary`, `full` or `off`."
    ),
    "reasoning_token_limit": "Maximum length of a summary of reasoning, in tokens of four bytes.",
    "tool_rate_limit": (
        "Maximum number of calls per second of one tool by the runs of one key; 0 is no limit."
    ),
    "default_model": "The model of nodes that name no model, as `provider:model`.",
    "model_servers": (
        "OpenAI-compatible model servers as `name=url,...`. `name:model` then names a model "
        "of the server, and `<NAME>_API_KEY` its key, if it needs one. The name `openai`, "
        "`anthropic` or `google` is that provider at another address, such as a gateway, with "
        "the provider's own API."
    ),
    "models_allowed": (
        "The allowed models, as patterns of `provider:model` separated by commas. Empty: all "
        "models."
    ),
    "require_own_keys": (
        "Do not use the operator's model keys: every run must use a credential of its tenant."
    ),
    "secrets_dir": "A directory of credentials as files, `<tenant>/<name>`.",
    "mcp": (
        "Serve workflows to MCP clients at `/mcp`, if the package `mcp` is installed. When "
        "off, it returns 501."
    ),
    "mcp_call_seconds": (
        "How long an MCP client waits for a run. The run continues after that; 0 is no limit."
    ),
    "mcp_origins": (
        "Origins of web pages, such as `https://app.example.com`, separated by commas, that "
        "may call `/mcp` in addition to the host's own."
    ),
    "mcp_servers": "A YAML or JSON file that declares MCP servers whose tools agents may call.",
    "max_budget_tokens": "Maximum number of tokens of a run; 0 is no limit.",
    "max_budget_cost_usd": (
        "Maximum cost of a run in US dollars, as far as prices are known; 0 is no limit."
    ),
    "max_model_calls": "Maximum number of model calls of a run; 0 is no limit.",
    "max_tool_calls": "Maximum number of tool calls of a run; 0 is no limit.",
    "max_node_executions": "Maximum number of node executions of a run.",
    "max_run_duration_ms": "Maximum duration of a run, including waits.",
    "max_loop_iterations": "Maximum number of iterations of one loop.",
}

RESPONSE_ERRORS: Final[dict[str, str]] = {
    "invalid_from_seq": "`fromSeq` of a fork is beyond the end of the source's log.",
    "replay_memory_snapshot_unavailable": (
        "The history of a branch wrote memories, whose earlier state cannot be restored."
    ),
    "validation_error": "The request is invalid; `details.field` names the field.",
    "unsupported_stream_mode": "A stream mode, or a mix of modes, that does not exist.",
    "unsupported_model_class": "An agent whose class of model this host does not advertise.",
    "unsupported_mock_provider": "A mock provider that this host does not have.",
    "unsupported_force_engine_version": "A forced engine version outside the advertised range.",
    "webhook_url_rejected": "A webhook address that the host does not connect to.",
    "channel_access_denied": "A channel that this caller may not use.",
    "channel_cross_engine_write_forbidden": "A channel write from another engine.",
    "INVALID_RESUME_VALUE": "An answer to an interrupt does not match its schema.",
    "credential_scope_unsupported": "A credential scope that this host does not have.",
    "capability_required": (
        "The request needs a capability that this host does not advertise; "
        "`details.requiredCapability` names it."
    ),
    "unknown_child_workflow": "A workflow starts another workflow that is not registered.",
    "unauthenticated": "No API key, or an unknown key.",
    "key_expired": "The key has expired.",
    "key_revoked": "The key was revoked.",
    "forbidden": "The key is valid but lacks a scope; `details.scopeRequired` names it.",
    "run_forbidden": "A run that this key may not access.",
    "workspace_membership_required": "A workspace that this key does not belong to.",
    "mock_provider_forbidden": "Mock providers are for test keys.",
    "force_engine_version_forbidden": "Forcing an engine version is for test keys.",
    "credential_forbidden": "A credential that this key may not use.",
    "credential_scope_forbidden": "A credential scope that this key may not use.",
    "not_found": "Unknown, or of another tenant: the response is the same.",
    "interrupt_not_found": "No such interrupt.",
    "subscription_not_found": "No such webhook subscription.",
    "method_not_allowed": (
        "The path exists with another method; `details.allowed` lists the methods."
    ),
    "not_acceptable": "The host has no response format that the client accepts.",
    "run_already_active": "`X-Dedup: enforce` found an active run of the same workflow.",
    "run_state_conflict": "The run's status does not allow the request.",
    "workflow_exists": "This id and version already exist with different content.",
    "agent_exists": "This agent and version already exist with different content.",
    "hold_lost": (
        "The process lost its lease: another process now executes the run's nodes. Handled inside the host; clients do "
        "not see it."
    ),
    "sequence_taken": (
        "Another writer appended first. Retried inside the host; clients do not see it."
    ),
    "idempotency_in_flight": "The first request with this key is still in progress.",
    "idempotency_key_mismatch": "The key was used with another body.",
    "interrupt_already_resolved": "The interrupt was already answered.",
    "workspace_conflict": "The workspace has changed in the meantime.",
    "would_rewrite": "The lines would rewrite a stored log.",
    "descendant_limit_exceeded": (
        "The root run has the maximum number of descendants (children and forks at any depth)."
    ),
    "review_conflict": "A review of a run that the reviewer has not reserved, or no longer.",
    "interrupt_expired": "The interrupt has expired.",
    "interrupt_gone": "The interrupt no longer exists.",
    "run_expired": "Retention has deleted the run.",
    "workspace_too_large": "The workspace exceeds its maximum size.",
    "payload_too_large": "The body exceeds the limit.",
    "unsupported_media_type": "A body that is not JSON.",
    "interrupt_cancelled": "The interrupt was cancelled.",
    "correlation_mismatch": "An event that belongs to another interrupt.",
    "unprocessable": "The request is well formed, but this host cannot fulfil it.",
    "upgrade_required": "The client's version is too old.",
    "header_too_large": "The request line and headers exceed the limit.",
    "request_timeout": "The headers or the body of the request arrived too slowly.",
    "rate_limited": "Too many requests; `Retry-After` says when to try again.",
    "quota_exceeded": (
        "A quota is used up: `details` contains its name, limit and usage; `Retry-After` says "
        "when to try again."
    ),
    "internal_error": (
        "An error of the host; the log line with `details.correlationId` contains the cause."
    ),
    "capability_not_provided": "A capability that is turned off.",
    "service_unavailable": (
        "The host is stopping, is over capacity, or its store accepts no writes."
    ),
}

RUN_ERRORS: Final[dict[str, str]] = {
    "decision_rejected": "A person rejected the agent's decision.",
    "framework_error": (
        "A wrapped graph or agent of another framework raised an exception; `details` names both."
    ),
    "interrupt_timeout": "The interrupt was not answered in time.",
    "descendant_limit_exceeded": (
        "A child would exceed the maximum number of descendants of its root run."
    ),
    "value_too_large": "A value that is larger than `WOPR_MAX_VALUE_BYTES`.",
    "event_too_large": "An event that is larger than `WOPR_MAX_EVENT_BYTES`.",
    "run_data_limit_exceeded": "All events of the run together are larger than `WOPR_MAX_RUN_BYTES`.",
    "recursion_limit_exceeded": "More node executions than allowed.",
    "run_timeout": "The run took longer than its limit.",
    "loop_limit_exceeded": "A loop had too many iterations.",
    "budget_exhausted": "The run's budget is used up.",
    "token_budget_exceeded": "The run used more tokens than allowed.",
    "quota_exceeded": "A quota of the tenant is used up, such as its active runs, its stored bytes or the model tokens of a day.",
    "capability_not_provided": "A node needs a runtime capability that this host does not provide.",
    "engine_version_mismatch": "The log has an engine version that this host cannot continue.",
    "version_out_of_range": "A pinned version is outside the range that the node's code supports.",
    "credential_required": "A node needs a credential, but has none.",
    "credential_unavailable": "The credential is not available now.",
    "credential_not_found": "No such credential.",
    "provider_policy_denied": "The operator does not allow this model provider.",
    "channel_schema_breaking_change": "An event of a channel version that is no longer accepted.",
    "channel_access_denied": "The node is not among the channel's readers or writers.",
    "replay_source_missing": "The run to replay, or a part of its log, does not exist.",
    "replay_memory_snapshot_unavailable": "The memory that the replay needs no longer exists.",
    "replay_diverged_at_refusal": "The replay had a refusal that the original did not have.",
    "no_pending_decision": "A dispatch without a decision to execute.",
    "fan_out_unsupported": "A decision for several workers where one is allowed.",
    "unknown_child_workflow": "The node starts a workflow that is not registered.",
    "handoff_task_schema_violation": "The input of an agent does not match its manifest.",
    "handoff_return_schema_violation": "The output of an agent does not match its manifest.",
    "envelope_payload_invalid": "A model's response does not match its schema.",
    "envelope_truncation_unrecoverable": "A model's response was truncated, also in every retry.",
    "envelope_refused_by_provider": "The model refused.",
    "model_error": "A model's response cannot be read.",
    "model_rejected": "A model provider rejected the request; a retry would not help.",
    "model_timeout": "A model did not respond in time.",
    "model_unavailable": "A model provider failed or could not be reached, also in every retry.",
    "tool_call_invalid": "A model repeatedly called unknown tools, or tools with wrong arguments.",
    "tool_error": "A tool that a node calls without an agent refused or failed.",
    "tool_timeout": "A tool that a node calls without an agent took too long.",
    "tool_unavailable": "The server of a tool cannot be reached, or has no such tool.",
    "credential_forbidden": "The credential is not allowed for this destination.",
    "runner_unavailable": "The executor of the node cannot be reached.",
    "residency_unavailable": "No executor in the region that the run requires.",
    "unsupported_node_type": "On logs of earlier versions: the host had no code for a node's type.",
    "validation_error": "The inputs of a node are invalid.",
    "schema_check_failed": "A value could not be checked against its JSON Schema within the limits of time and "
    "memory.",
    "expression_error": "An expression failed or costs too much.",
    "node_error": "A node failed without its own error code.",
    "node_timeout": "A node took longer than its `timeout`.",
    "child_failed": "A child run failed.",
    "child_cancelled": "A child run was cancelled.",
    "egress_denied": "A destination that the host may not connect to.",
    "http_error": "A service did not respond, or responded with an error.",
    "internal_error": "An error of the host.",
    "interrupt_rejected": "A person rejected the request.",
}
