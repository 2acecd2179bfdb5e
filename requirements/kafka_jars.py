"""Print the lines of streams/local/kafka-jars.txt: ``kafka_jars.py VERSION``.

It resolves the dependencies with jgo. Set ``KAFKA_VERSION`` in
streams/local/kafka_runtime.py as well.
"""

import hashlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from jgo.maven import MavenContext


def main(version: str) -> None:
    """Resolve a version of Kafka and print its list."""
    rows: list[str] = []
    with TemporaryDirectory() as directory:
        context = MavenContext(repo_cache=Path(directory))
        kafka = context.create_dependency(f"org.apache.kafka:kafka_2.13:{version}")
        kafka.scope = "compile"
        inputs, transitive = context.resolver.resolve([kafka])
        needed = [item for item in transitive if item.scope in ("compile", "runtime")]
        artifacts = [item.artifact for item in (*inputs, *needed)]
        binding = next(item.version for item in artifacts if item.artifactId == "slf4j-api")
        artifacts.append(
            context.project("org.slf4j", "slf4j-simple").at_version(binding).artifact()
        )
        for artifact in artifacts:
            folder = f"{artifact.groupId.replace('.', '/')}/{artifact.artifactId}"
            file = Path(artifact.resolve())
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            rows.append(f"{digest} {folder}/{artifact.version}/{file.name}")
    print(*sorted(rows, key=lambda row: row.split()[1]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
