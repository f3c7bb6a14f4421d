"""A user of a PostgreSQL cluster with a connection limit, so that the server itself refuses the
first connection that is one too many, and says so in its log."""

import itertools

from harness.postgres import USER, Cluster

_numbers = itertools.count(1)


class Role:
    """Owns a database of its own."""

    def __init__(self, cluster: Cluster, limit: int) -> None:
        self.cluster, self.name = cluster, f"limited_{next(_numbers)}"
        self.database = cluster.create_database()
        cluster.psql(f"CREATE ROLE {self.name} LOGIN CONNECTION LIMIT {limit}")
        cluster.psql(f"ALTER DATABASE {self.database} OWNER TO {self.name}")

    @property
    def url(self) -> str:
        return self.cluster.url(self.database).replace(f"{USER}@", f"{self.name}@", 1)

    def limit(self, most: int) -> None:
        """Of connections to come; those that are there stay."""
        self.cluster.psql(f"ALTER ROLE {self.name} CONNECTION LIMIT {most}")

    def connections(self) -> int:
        sql = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.name}'"
        return int(self.cluster.psql(sql))

    def break_connections(self) -> None:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        self.cluster.psql(f"{sql} WHERE usename = '{self.name}'")

    def refusals(self) -> int:
        text = self.cluster.log.read_text(errors="replace")
        return text.count(f'too many connections for role "{self.name}"')
