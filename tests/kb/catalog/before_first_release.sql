-- The catalog that the eight migrations before the first release made, at their last revision.
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE documents (
	id VARCHAR NOT NULL,
	source_key VARCHAR NOT NULL,
	title VARCHAR NOT NULL,
	category VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	current_version_id VARCHAR,
	created_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_documents PRIMARY KEY (id),
	CONSTRAINT uq_documents_access_scope_source_key UNIQUE (access_scope, source_key)
);
CREATE TABLE embeddings (
	text_sha256 VARCHAR NOT NULL,
	model_fingerprint VARCHAR NOT NULL,
	vector BLOB NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_embeddings PRIMARY KEY (text_sha256, model_fingerprint)
);
CREATE TABLE hardware (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	vendor VARCHAR,
	parent_id VARCHAR,
	kind VARCHAR NOT NULL,
	summary VARCHAR NOT NULL,
	aliases JSON DEFAULT '[]' NOT NULL,
	languages JSON DEFAULT '[]' NOT NULL,
	signatures JSON DEFAULT '[]' NOT NULL,
	toolchains JSON DEFAULT '{}' NOT NULL,
	spec TEXT NOT NULL,
	origin VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_hardware PRIMARY KEY (id)
);
CREATE INDEX ix_hardware_parent_id ON hardware (parent_id);
CREATE TABLE jobs (
	id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	subject_id VARCHAR,
	payload JSON DEFAULT '{}' NOT NULL,
	progress JSON DEFAULT '{}' NOT NULL,
	result JSON DEFAULT '{}' NOT NULL,
	error JSON,
	attempts INTEGER DEFAULT 0 NOT NULL,
	lease_owner VARCHAR,
	lease_expires_at VARCHAR,
	heartbeat_at VARCHAR,
	created_at VARCHAR NOT NULL,
	started_at VARCHAR,
	finished_at VARCHAR,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id)
);
CREATE INDEX ix_jobs_state_created_at ON jobs (state, created_at);
CREATE INDEX ix_jobs_subject_id ON jobs (subject_id);
CREATE TABLE meta (
	"key" VARCHAR NOT NULL,
	value JSON DEFAULT '{}' NOT NULL,
	updated_at VARCHAR NOT NULL,
	CONSTRAINT pk_meta PRIMARY KEY ("key")
);
CREATE TABLE toolchains (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	language VARCHAR NOT NULL,
	hardware_id VARCHAR,
	versions JSON DEFAULT '{}' NOT NULL,
	fingerprint VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_toolchains PRIMARY KEY (id),
	CONSTRAINT uq_toolchains_fingerprint UNIQUE (fingerprint)
);
CREATE TABLE corrections (
	id VARCHAR NOT NULL,
	document_id VARCHAR NOT NULL,
	target VARCHAR NOT NULL,
	anchor VARCHAR NOT NULL,
	field VARCHAR NOT NULL,
	value JSON DEFAULT '{}' NOT NULL,
	actor VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_corrections PRIMARY KEY (id),
	CONSTRAINT fk_corrections_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);
CREATE INDEX ix_corrections_document_id ON corrections (document_id);
CREATE INDEX ix_corrections_document_id_target_anchor ON corrections (document_id, target, anchor);
CREATE TABLE devices (
	id VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	uuid VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	driver VARCHAR,
	memory_bytes INTEGER,
	copy_bandwidth FLOAT,
	matmul_peak JSON DEFAULT '{}' NOT NULL,
	launch_latency FLOAT,
	environment JSON DEFAULT '{}' NOT NULL,
	measured_at VARCHAR,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_devices PRIMARY KEY (id),
	CONSTRAINT fk_devices_hardware_id_hardware FOREIGN KEY(hardware_id) REFERENCES hardware (id) ON DELETE CASCADE,
	CONSTRAINT uq_devices_uuid_driver UNIQUE (uuid, driver)
);
CREATE INDEX ix_devices_hardware_id ON devices (hardware_id);
CREATE TABLE document_scopes (
	document_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	value VARCHAR NOT NULL,
	CONSTRAINT pk_document_scopes PRIMARY KEY (document_id, kind, value),
	CONSTRAINT fk_document_scopes_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);
CREATE INDEX ix_document_scopes_kind_value ON document_scopes (kind, value);
CREATE TABLE document_versions (
	id VARCHAR NOT NULL,
	document_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	sha256 VARCHAR NOT NULL,
	pipeline VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	file_name VARCHAR NOT NULL,
	format VARCHAR NOT NULL,
	size_bytes INTEGER NOT NULL,
	blob_key VARCHAR NOT NULL,
	declared JSON DEFAULT '{}' NOT NULL,
	report JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_document_versions PRIMARY KEY (id),
	CONSTRAINT fk_document_versions_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE,
	CONSTRAINT uq_document_versions_document_id_number UNIQUE (document_id, number)
);
CREATE INDEX ix_document_versions_document_id ON document_versions (document_id);
CREATE INDEX ix_document_versions_sha256 ON document_versions (sha256);
CREATE TABLE facts (
	id VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	"key" VARCHAR NOT NULL,
	number FLOAT,
	text VARCHAR NOT NULL,
	unit VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	title VARCHAR NOT NULL,
	publisher VARCHAR NOT NULL,
	locator VARCHAR NOT NULL,
	url VARCHAR,
	date VARCHAR,
	note VARCHAR,
	formula VARCHAR,
	subject VARCHAR,
	document_id VARCHAR,
	version_id VARCHAR,
	page_index INTEGER,
	page_label VARCHAR,
	cell JSON,
	actor VARCHAR,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_facts PRIMARY KEY (id),
	CONSTRAINT fk_facts_hardware_id_hardware FOREIGN KEY(hardware_id) REFERENCES hardware (id) ON DELETE CASCADE
);
CREATE INDEX ix_facts_document_id ON facts (document_id);
CREATE INDEX ix_facts_hardware_id ON facts (hardware_id);
CREATE INDEX ix_facts_hardware_id_key_status ON facts (hardware_id, "key", status);
CREATE TABLE moves (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	document_id VARCHAR,
	section_id VARCHAR,
	passage_id VARCHAR,
	hardware JSON DEFAULT '[]' NOT NULL,
	languages JSON DEFAULT '[]' NOT NULL,
	signals JSON DEFAULT '[]' NOT NULL,
	predicate VARCHAR NOT NULL,
	change JSON DEFAULT '{}' NOT NULL,
	limit_fact VARCHAR,
	why VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_moves PRIMARY KEY (id),
	CONSTRAINT fk_moves_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);
CREATE INDEX ix_moves_document_id ON moves (document_id);
CREATE TABLE recipes (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	language VARCHAR NOT NULL,
	document_id VARCHAR,
	passage_id VARCHAR,
	skill_id VARCHAR,
	hardware JSON DEFAULT '[]' NOT NULL,
	body JSON DEFAULT '{}' NOT NULL,
	status VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_recipes PRIMARY KEY (id),
	CONSTRAINT fk_recipes_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE
);
CREATE INDEX ix_recipes_document_id ON recipes (document_id);
CREATE INDEX ix_recipes_skill_id ON recipes (skill_id);
CREATE TABLE sections (
	seq INTEGER NOT NULL,
	id VARCHAR NOT NULL,
	version_id VARCHAR NOT NULL,
	parent_id VARCHAR,
	ordinal INTEGER NOT NULL,
	level INTEGER NOT NULL,
	heading VARCHAR NOT NULL,
	path JSON DEFAULT '[]' NOT NULL,
	page_index INTEGER,
	page_label VARCHAR,
	hardware_scope JSON,
	CONSTRAINT pk_sections PRIMARY KEY (seq),
	CONSTRAINT fk_sections_version_id_document_versions FOREIGN KEY(version_id) REFERENCES document_versions (id) ON DELETE CASCADE,
	CONSTRAINT uq_sections_id UNIQUE (id)
);
CREATE INDEX ix_sections_parent_id ON sections (parent_id);
CREATE INDEX ix_sections_version_id ON sections (version_id);
CREATE INDEX ix_sections_version_id_ordinal ON sections (version_id, ordinal);
CREATE TABLE passages (
	seq INTEGER NOT NULL,
	id VARCHAR NOT NULL,
	document_id VARCHAR NOT NULL,
	version_id VARCHAR NOT NULL,
	section_id VARCHAR NOT NULL,
	ordinal INTEGER NOT NULL,
	kind VARCHAR NOT NULL,
	lead TEXT NOT NULL,
	text TEXT NOT NULL,
	language VARCHAR,
	text_sha256 VARCHAR NOT NULL,
	embed_sha256 VARCHAR NOT NULL,
	boxes JSON DEFAULT '[]' NOT NULL,
	page_index INTEGER,
	page_label VARCHAR,
	prose INTEGER NOT NULL,
	corrected BOOLEAN DEFAULT 0 NOT NULL,
	active BOOLEAN DEFAULT 0 NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_passages PRIMARY KEY (seq),
	CONSTRAINT fk_passages_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE,
	CONSTRAINT fk_passages_section_id_sections FOREIGN KEY(section_id) REFERENCES sections (id) ON DELETE CASCADE,
	CONSTRAINT fk_passages_version_id_document_versions FOREIGN KEY(version_id) REFERENCES document_versions (id) ON DELETE CASCADE,
	CONSTRAINT uq_passages_id UNIQUE (id)
);
CREATE INDEX ix_passages_document_id ON passages (document_id);
CREATE INDEX ix_passages_embed_sha256 ON passages (embed_sha256);
CREATE INDEX ix_passages_section_id ON passages (section_id);
CREATE INDEX ix_passages_version_id ON passages (version_id);
CREATE INDEX ix_passages_version_id_ordinal ON passages (version_id, ordinal);
CREATE TABLE passage_hardware (
	passage_id VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	CONSTRAINT pk_passage_hardware PRIMARY KEY (passage_id, hardware_id),
	CONSTRAINT fk_passage_hardware_passage_id_passages FOREIGN KEY(passage_id) REFERENCES passages (id) ON DELETE CASCADE
);
CREATE INDEX ix_passage_hardware_hardware_id ON passage_hardware (hardware_id);
CREATE TABLE passage_tags (
	passage_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	value VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	CONSTRAINT pk_passage_tags PRIMARY KEY (passage_id, kind, value),
	CONSTRAINT fk_passage_tags_passage_id_passages FOREIGN KEY(passage_id) REFERENCES passages (id) ON DELETE CASCADE
);
CREATE INDEX ix_passage_tags_kind_value ON passage_tags (kind, value);
CREATE TABLE evidence (
	id VARCHAR NOT NULL,
	subject_kind VARCHAR NOT NULL,
	subject_id VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	device_id VARCHAR,
	toolchain_id VARCHAR,
	problem_id VARCHAR,
	case_id VARCHAR,
	evaluation_id VARCHAR,
	kind VARCHAR NOT NULL,
	n INTEGER NOT NULL,
	baseline_us FLOAT,
	measured_us FLOAT,
	speedup FLOAT,
	speedup_low FLOAT,
	speedup_high FLOAT,
	details JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_evidence PRIMARY KEY (id)
);
CREATE INDEX ix_evidence_subject_kind_subject_id ON evidence (subject_kind, subject_id);
CREATE TABLE retrievals (
	id VARCHAR NOT NULL,
	request JSON DEFAULT '{}' NOT NULL,
	hardware_id VARCHAR,
	signals JSON DEFAULT '[]' NOT NULL,
	excerpt_ids JSON DEFAULT '[]' NOT NULL,
	skill_ids JSON DEFAULT '[]' NOT NULL,
	move_ids JSON DEFAULT '[]' NOT NULL,
	skills_withheld JSON DEFAULT '[]' NOT NULL,
	context_sha256 VARCHAR NOT NULL,
	run_id VARCHAR,
	node_id VARCHAR,
	milliseconds FLOAT NOT NULL,
	catalog_revision INTEGER NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_retrievals PRIMARY KEY (id)
);
CREATE INDEX ix_retrievals_hardware_id ON retrievals (hardware_id);
CREATE INDEX ix_retrievals_run_id ON retrievals (run_id);
CREATE TABLE skills (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	version INTEGER NOT NULL,
	tier VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	polarity VARCHAR NOT NULL,
	transformation VARCHAR NOT NULL,
	description VARCHAR NOT NULL,
	compatibility VARCHAR,
	license VARCHAR,
	body TEXT NOT NULL,
	predicate VARCHAR,
	moves JSON DEFAULT '[]' NOT NULL,
	recipe JSON,
	sources JSON DEFAULT '[]' NOT NULL,
	metadata JSON DEFAULT '{}' NOT NULL,
	content_sha256 VARCHAR NOT NULL,
	structured_key VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	origin_run_id VARCHAR,
	toolchain_id VARCHAR,
	created_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL, trials INTEGER DEFAULT 0 NOT NULL, wins INTEGER DEFAULT 0 NOT NULL, last_used_at VARCHAR, written_at VARCHAR,
	CONSTRAINT pk_skills PRIMARY KEY (id),
	CONSTRAINT uq_skills_access_scope_name UNIQUE (access_scope, name)
);
CREATE INDEX ix_skills_content_sha256 ON skills (content_sha256);
CREATE INDEX ix_skills_structured_key ON skills (structured_key);
CREATE TABLE outcomes (
	id VARCHAR NOT NULL,
	retrieval_id VARCHAR NOT NULL,
	used JSON DEFAULT '[]' NOT NULL,
	correct BOOLEAN,
	speedup FLOAT,
	note VARCHAR,
	created_at VARCHAR NOT NULL, baseline_speedup FLOAT, gain FLOAT, helped INTEGER,
	CONSTRAINT pk_outcomes PRIMARY KEY (id),
	CONSTRAINT fk_outcomes_retrieval_id_retrievals FOREIGN KEY(retrieval_id) REFERENCES retrievals (id) ON DELETE CASCADE
);
CREATE INDEX ix_outcomes_retrieval_id ON outcomes (retrieval_id);
CREATE TABLE skill_events (
	id VARCHAR NOT NULL,
	skill_id VARCHAR NOT NULL,
	sequence INTEGER NOT NULL,
	event VARCHAR NOT NULL,
	from_state VARCHAR,
	to_state VARCHAR,
	actor VARCHAR NOT NULL,
	reason VARCHAR NOT NULL,
	details JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_skill_events PRIMARY KEY (id),
	CONSTRAINT fk_skill_events_skill_id_skills FOREIGN KEY(skill_id) REFERENCES skills (id) ON DELETE CASCADE,
	CONSTRAINT uq_skill_events_skill_id_sequence UNIQUE (skill_id, sequence)
);
CREATE INDEX ix_skill_events_skill_id ON skill_events (skill_id);
CREATE TABLE skill_links (
	skill_id VARCHAR NOT NULL,
	other_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_skill_links PRIMARY KEY (skill_id, other_id, kind),
	CONSTRAINT fk_skill_links_skill_id_skills FOREIGN KEY(skill_id) REFERENCES skills (id) ON DELETE CASCADE
);
CREATE TABLE skill_scopes (
	skill_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	value VARCHAR NOT NULL,
	CONSTRAINT pk_skill_scopes PRIMARY KEY (skill_id, kind, value),
	CONSTRAINT fk_skill_scopes_skill_id_skills FOREIGN KEY(skill_id) REFERENCES skills (id) ON DELETE CASCADE
);
CREATE INDEX ix_skill_scopes_kind_value ON skill_scopes (kind, value);
CREATE TABLE candidates (
	id VARCHAR NOT NULL,
	bundle_sha256 VARCHAR NOT NULL,
	language VARCHAR NOT NULL,
	entry VARCHAR NOT NULL,
	origin VARCHAR NOT NULL,
	parameters JSON DEFAULT '{}' NOT NULL,
	blob_key VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_candidates PRIMARY KEY (id),
	CONSTRAINT uq_candidates_bundle_sha256 UNIQUE (bundle_sha256)
);
CREATE TABLE problems (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	sha256 VARCHAR NOT NULL,
	provider VARCHAR NOT NULL,
	op_family VARCHAR NOT NULL,
	blob_key VARCHAR NOT NULL,
	policy JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_problems PRIMARY KEY (id),
	CONSTRAINT uq_problems_sha256 UNIQUE (sha256)
);
CREATE INDEX ix_problems_op_family ON problems (op_family);
CREATE TABLE trajectories (
	id VARCHAR NOT NULL,
	run_id VARCHAR,
	origin VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	blob_key VARCHAR NOT NULL,
	summary JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_trajectories PRIMARY KEY (id)
);
CREATE INDEX ix_trajectories_run_id ON trajectories (run_id);
CREATE TABLE evaluations (
	id VARCHAR NOT NULL,
	"key" VARCHAR NOT NULL,
	problem_id VARCHAR NOT NULL,
	candidate_id VARCHAR NOT NULL,
	device_id VARCHAR,
	toolchain_id VARCHAR,
	harness_version VARCHAR NOT NULL,
	stage VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	validity VARCHAR,
	timing VARCHAR,
	speedup FLOAT,
	speedup_low FLOAT,
	speedup_high FLOAT,
	isolation JSON DEFAULT '{}' NOT NULL,
	metrics JSON DEFAULT '{}' NOT NULL,
	verdict JSON DEFAULT '{}' NOT NULL,
	stages JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	finished_at VARCHAR,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_evaluations PRIMARY KEY (id),
	CONSTRAINT fk_evaluations_candidate_id_candidates FOREIGN KEY(candidate_id) REFERENCES candidates (id) ON DELETE CASCADE,
	CONSTRAINT fk_evaluations_problem_id_problems FOREIGN KEY(problem_id) REFERENCES problems (id) ON DELETE CASCADE,
	CONSTRAINT uq_evaluations_key UNIQUE ("key")
);
CREATE INDEX ix_evaluations_candidate_id ON evaluations (candidate_id);
CREATE INDEX ix_evaluations_device_id ON evaluations (device_id);
CREATE INDEX ix_evaluations_problem_id ON evaluations (problem_id);
CREATE TABLE problem_cases (
	id VARCHAR NOT NULL,
	problem_id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	dtype VARCHAR NOT NULL,
	shapes JSON DEFAULT '[]' NOT NULL,
	shape_bucket VARCHAR NOT NULL,
	distribution VARCHAR NOT NULL,
	weight FLOAT NOT NULL,
	held_out BOOLEAN NOT NULL,
	CONSTRAINT pk_problem_cases PRIMARY KEY (id),
	CONSTRAINT fk_problem_cases_problem_id_problems FOREIGN KEY(problem_id) REFERENCES problems (id) ON DELETE CASCADE,
	CONSTRAINT uq_problem_cases_problem_id_name UNIQUE (problem_id, name)
);
CREATE INDEX ix_problem_cases_problem_id ON problem_cases (problem_id);
CREATE TABLE runs (
	id VARCHAR NOT NULL,
	problem_id VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	device_id VARCHAR,
	state VARCHAR NOT NULL,
	policy VARCHAR NOT NULL,
	seed INTEGER NOT NULL,
	goal JSON DEFAULT '{}' NOT NULL,
	settings JSON DEFAULT '{}' NOT NULL,
	summary JSON DEFAULT '{}' NOT NULL,
	cost_usd FLOAT NOT NULL,
	created_at VARCHAR NOT NULL,
	finished_at VARCHAR,
	access_scope VARCHAR DEFAULT 'all' NOT NULL, cancel_requested_at VARCHAR,
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT fk_runs_problem_id_problems FOREIGN KEY(problem_id) REFERENCES problems (id) ON DELETE CASCADE
);
CREATE INDEX ix_runs_problem_id ON runs (problem_id);
CREATE TABLE evaluation_cases (
	id VARCHAR NOT NULL,
	evaluation_id VARCHAR NOT NULL,
	case_id VARCHAR NOT NULL,
	op_family VARCHAR NOT NULL,
	dtype VARCHAR NOT NULL,
	shape_bucket VARCHAR NOT NULL,
	hardware_id VARCHAR NOT NULL,
	candidate_id VARCHAR NOT NULL,
	correct BOOLEAN,
	baseline_us FLOAT,
	candidate_us FLOAT,
	speedup FLOAT,
	speedup_low FLOAT,
	errors JSON DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_evaluation_cases PRIMARY KEY (id),
	CONSTRAINT fk_evaluation_cases_case_id_problem_cases FOREIGN KEY(case_id) REFERENCES problem_cases (id) ON DELETE CASCADE,
	CONSTRAINT fk_evaluation_cases_evaluation_id_evaluations FOREIGN KEY(evaluation_id) REFERENCES evaluations (id) ON DELETE CASCADE,
	CONSTRAINT uq_evaluation_cases_evaluation_id_case_id UNIQUE (evaluation_id, case_id)
);
CREATE INDEX ix_evaluation_cases_case_id ON evaluation_cases (case_id);
CREATE INDEX ix_evaluation_cases_evaluation_id ON evaluation_cases (evaluation_id);
CREATE INDEX ix_warm_start ON evaluation_cases (op_family, dtype, hardware_id, shape_bucket, speedup_low);
CREATE TABLE nodes (
	id VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	parent_id VARCHAR,
	island INTEGER NOT NULL,
	memory VARCHAR NOT NULL,
	synthesizer VARCHAR NOT NULL,
	candidate_id VARCHAR,
	evaluation_id VARCHAR,
	retrieval_id VARCHAR,
	shown JSON DEFAULT '{}' NOT NULL,
	claimed JSON DEFAULT '{}' NOT NULL,
	attributed JSON DEFAULT '{}' NOT NULL,
	usage JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL, state VARCHAR DEFAULT 'evaluated' NOT NULL, record JSON DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_nodes PRIMARY KEY (id),
	CONSTRAINT fk_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
	CONSTRAINT uq_nodes_run_id_number UNIQUE (run_id, number)
);
CREATE INDEX ix_nodes_candidate_id ON nodes (candidate_id);
CREATE INDEX ix_nodes_evaluation_id ON nodes (evaluation_id);
CREATE INDEX ix_nodes_parent_id ON nodes (parent_id);
CREATE INDEX ix_nodes_run_id ON nodes (run_id);
CREATE VIRTUAL TABLE lexical_passages USING fts5(scope, heading, body, detail = full, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'");
CREATE VIRTUAL TABLE lexical_sections USING fts5(scope, heading, body, detail = full, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'");
CREATE INDEX ix_skills_state ON skills (state);
CREATE INDEX ix_skill_links_other_id ON skill_links (other_id);
CREATE INDEX ix_retrievals_created_at ON retrievals (created_at);
CREATE TABLE skill_uses (
	id VARCHAR NOT NULL,
	retrieval_id VARCHAR NOT NULL,
	outcome_id VARCHAR,
	skill_id VARCHAR NOT NULL,
	version INTEGER NOT NULL,
	role VARCHAR NOT NULL,
	helped INTEGER,
	gain FLOAT,
	situation JSON DEFAULT '{}' NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_skill_uses PRIMARY KEY (id),
	CONSTRAINT fk_skill_uses_retrieval_id_retrievals FOREIGN KEY(retrieval_id) REFERENCES retrievals (id) ON DELETE CASCADE,
	CONSTRAINT fk_skill_uses_skill_id_skills FOREIGN KEY(skill_id) REFERENCES skills (id) ON DELETE CASCADE
);
CREATE INDEX ix_skill_uses_retrieval_id ON skill_uses (retrieval_id);
CREATE INDEX ix_skill_uses_skill_id_role_created_at ON skill_uses (skill_id, role, created_at);
CREATE TABLE evaluation_reviews (
	id VARCHAR NOT NULL,
	evaluation_id VARCHAR NOT NULL,
	sequence INTEGER NOT NULL,
	decision VARCHAR NOT NULL,
	actor VARCHAR NOT NULL,
	reason VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	access_scope VARCHAR DEFAULT 'all' NOT NULL,
	CONSTRAINT pk_evaluation_reviews PRIMARY KEY (id),
	CONSTRAINT fk_evaluation_reviews_evaluation_id_evaluations FOREIGN KEY(evaluation_id) REFERENCES evaluations (id) ON DELETE CASCADE,
	CONSTRAINT uq_evaluation_reviews_evaluation_id_sequence UNIQUE (evaluation_id, sequence)
);
CREATE INDEX ix_evaluation_reviews_evaluation_id ON evaluation_reviews (evaluation_id);
INSERT INTO alembic_version VALUES ('0008');
